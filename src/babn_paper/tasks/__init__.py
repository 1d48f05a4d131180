"""What experiments train and test on."""
