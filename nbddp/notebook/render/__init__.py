"""Tables, cards, timelines and pictures, as HTML and as text. Pure."""
