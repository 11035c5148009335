"""Parts that several layers share, or that keep the file of one layer short."""
