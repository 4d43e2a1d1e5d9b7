"""Directions of descent and optimisers."""
