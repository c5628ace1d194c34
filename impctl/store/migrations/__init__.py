"""One numbered file per change of the store's format; each says why it is needed."""
