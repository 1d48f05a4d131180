"""Translation: parallel texts, pieces of words, asking by beam search, scores and uncertainty."""
