"""Where the data is and how it streams: feature stores, corpora, shards and the order of reading."""
