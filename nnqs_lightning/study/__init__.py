"""Studies: a factorial of short training runs, its table, its statistics and its plots."""
