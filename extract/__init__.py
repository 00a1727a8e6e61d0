"""How the features came to be: video to frames to features, sentences to word features."""
