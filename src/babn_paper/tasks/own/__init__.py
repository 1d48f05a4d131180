"""Tasks on your own data, which options describe: files, columns, classes."""
