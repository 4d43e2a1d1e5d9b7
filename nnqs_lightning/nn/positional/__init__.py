"""How a decoder learns where a token sits."""
