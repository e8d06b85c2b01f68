"""The letters of `nbddp.notebook.render.canvas`: printable ASCII on a grid of 5 x 7 dots.

Each letter is five numbers, one for each column; bit 0 is the uppermost dot, bit 7 hangs below
the line. The shapes are those of common character displays.

Runs in: the notebook's process. Pure.
"""

COLUMNS = 5

_CODES = """
  00 00 00 00 00  ! 00 00 5f 00 00  " 00 07 00 07 00  # 14 7f 14 7f 14  $ 24 2a 7f 2a 12
% 23 13 08 64 62  & 36 49 56 20 50  ' 00 00 07 00 00  ( 00 1c 22 41 00  ) 00 41 22 1c 00
* 14 08 3e 08 14  + 08 08 3e 08 08  , 00 80 60 00 00  - 08 08 08 08 08  . 00 00 40 00 00
/ 20 10 08 04 02  0 3e 51 49 45 3e  1 00 42 7f 40 00  2 62 51 49 49 46  3 22 41 49 49 36
4 18 14 12 7f 10  5 27 45 45 45 39  6 3c 4a 49 49 30  7 01 61 19 05 03  8 36 49 49 49 36
9 06 49 49 29 1e  : 00 00 24 00 00  ; 00 80 64 00 00  < 00 08 14 22 41  = 14 14 14 14 14
> 41 22 14 08 00  ? 02 01 59 09 06  @ 3e 41 5d 59 4e  A 7c 12 11 12 7c  B 7f 49 49 49 36
C 3e 41 41 41 22  D 7f 41 41 41 3e  E 7f 49 49 49 41  F 7f 09 09 09 01  G 3e 41 41 51 32
H 7f 08 08 08 7f  I 00 41 7f 41 00  J 20 40 41 3f 01  K 7f 08 14 22 41  L 7f 40 40 40 40
M 7f 02 0c 02 7f  N 7f 04 08 10 7f  O 3e 41 41 41 3e  P 7f 09 09 09 06  Q 3e 41 51 21 5e
R 7f 09 19 29 46  S 26 49 49 49 32  T 01 01 7f 01 01  U 3f 40 40 40 3f  V 1f 20 40 20 1f
W 3f 40 38 40 3f  X 63 14 08 14 63  Y 03 04 78 04 03  Z 61 51 49 45 43  [ 00 7f 41 41 00
\\ 02 04 08 10 20  ] 00 41 41 7f 00  ^ 04 02 01 02 04  _ 40 40 40 40 40  ` 00 01 02 00 00
a 20 54 54 54 78  b 7f 48 44 44 38  c 38 44 44 44 28  d 38 44 44 48 7f  e 38 54 54 54 18
f 00 08 7e 09 02  g 18 a4 a4 a4 7c  h 7f 08 04 04 78  i 00 44 7d 40 00  j 40 80 84 7d 00
k 7f 10 28 44 00  l 00 41 7f 40 00  m 7c 04 78 04 78  n 7c 08 04 04 78  o 38 44 44 44 38
p fc 24 24 24 18  q 18 24 24 24 fc  r 7c 08 04 04 08  s 48 54 54 54 24  t 04 3f 44 40 20
u 3c 40 40 20 7c  v 1c 20 40 20 1c  w 3c 40 38 40 3c  x 44 28 10 28 44  y 1c a0 a0 a0 7c
z 44 64 54 4c 44  { 00 08 36 41 00  | 00 00 7f 00 00  } 00 41 36 08 00  ~ 08 04 08 10 08
"""


def _read(codes: str) -> dict[str, frozenset[tuple[int, int]]]:
    """Dots ``(column, row)`` by letter."""
    found = {}
    for line in codes.strip("\n").splitlines():
        for start in range(0, len(line), 18):
            columns = bytes.fromhex(line[start + 1 : start + 16])
            found[line[start]] = frozenset(
                (column, row)
                for column, bits in enumerate(columns)
                for row in range(8)
                if bits >> row & 1
            )
    return found


#: Dots ``(column, row)`` of each letter.
GLYPHS = _read(_CODES)
UNKNOWN = GLYPHS["?"]
