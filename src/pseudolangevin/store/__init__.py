"""The run folder: what is on disk, in which order it is written, and how it is read back."""
