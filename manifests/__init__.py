"""What exists: ids, durations, captions, splits, digests. The lowest floor: no torch, no zarr."""
