"""Samplers of the Born distribution |ψ|²."""
