"""The converter's version: raised when the same file would give another folder, so that old folders are made anew."""

CONVERTER_VERSION = 2
