"""Visual question answering with trained models: answers, figures, features and the demo."""
