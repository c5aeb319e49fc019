"""What comes from outside: files, pictures, numbers in text. Nothing is believed before it is checked here."""
