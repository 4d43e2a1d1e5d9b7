"""Local energies, estimators and what is minimised."""
