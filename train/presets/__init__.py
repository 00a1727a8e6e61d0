"""Presets: hyper-parameters as data, ``<model>.<dataset>.toml``, with the source of every value."""
