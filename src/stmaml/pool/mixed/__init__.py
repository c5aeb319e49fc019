"""Linear mixed models: groups differ in level, slopes and curves, which are normal about common ones."""
