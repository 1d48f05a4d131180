"""`babn demo`: the uncertainty of a fine-tuned classifier, with and without training as BABN."""
