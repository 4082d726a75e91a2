"""The kinds of effects, one per file (see `fireiron.ir.effect`)."""
