"""Sources → texts → vectors → bulk, with every document accounted for. No torch."""
