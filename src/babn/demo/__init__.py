"""What the three kinds of attention know about their own mistakes, on one small task."""
