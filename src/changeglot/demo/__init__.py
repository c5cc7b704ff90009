"""A small shop's life, told in seven formats: see `shop/README.md`."""
