"""FCIDUMP files: a strict reader, a writer, and the system that stands on them."""

from nnqs_lightning.chem.fcidump.reader import read_fcidump
from nnqs_lightning.chem.fcidump.system import Fcidump
from nnqs_lightning.chem.fcidump.writer import write_fcidump

__all__ = ["Fcidump", "read_fcidump", "write_fcidump"]
