"""Data sets: in device memory, streamed from host memory or disk, and the tasks of the paper."""

from .dataset import Dataset, Signs, StreamedDataset

__all__ = ["Dataset", "Signs", "StreamedDataset"]
