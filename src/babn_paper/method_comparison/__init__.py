"""Methods of uncertainty compared on the same data: the catalogue, runs, scores and tables."""
