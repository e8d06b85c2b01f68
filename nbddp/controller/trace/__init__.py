"""Operations of all ranks as rows, and their export. Pure."""
