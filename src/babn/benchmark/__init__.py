"""What stochastic attention costs in time and memory, beside softmax in the same run."""
