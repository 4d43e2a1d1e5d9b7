"""Occupation-number space: packed determinants, particle-number sectors, weighted samples of them."""

from nnqs_lightning.fock.determinant import n_words, pack, popcount, unpack
from nnqs_lightning.fock.sample import SampleBatch
from nnqs_lightning.fock.sector import Sector

__all__ = ["SampleBatch", "Sector", "n_words", "pack", "popcount", "unpack"]
