"""Neural-network quantum states of molecules on PyTorch Lightning."""

__version__ = "0.1.0"
