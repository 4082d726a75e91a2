"""Static checks of the kernel IR."""

from __future__ import annotations

from fireiron.check.finding import Finding, ordered, table
