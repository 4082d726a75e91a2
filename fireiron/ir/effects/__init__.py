"""The effects of the language, one a file (see `fireiron.ir.effect`)."""
