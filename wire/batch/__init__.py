"""The record batch: its layout, its columns, checksums and compression."""
