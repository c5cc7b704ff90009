package io.changeglot.kernel;

import java.util.Arrays;

/**
 * Remembers what pieces of messages became. The messages of one table repeat their types, keys and schemas byte for
 * byte; comparing bytes is some thirty times faster than reading them again. Gives up where nothing repeats.
 */
final class Memo {
  private static final int MOST = 256, TRIAL = 512;

  private final byte[][] pieces = new byte[MOST][];
  private final Object[] values = new Object[MOST];
  private int count, tried, hits;

  /** Set by {@link #find}: how many bytes the piece has. */
  int length;

  boolean useful() {
    return tried < TRIAL || hits * 4 > tried;
  }

  /** What the piece that begins at `at` became, or null. A piece is a whole object or array, so equal bytes end equally. */
  Object find(byte[] bytes, int at, int end) {
    if (++tried == 1 << 20) {
      tried >>= 1;
      hits >>= 1;
    }
    for (int i = 0; i < count; i++) {
      byte[] piece = pieces[i];
      int n = piece.length;
      if (n <= end - at && Arrays.equals(bytes, at, at + n, piece, 0, n)) {
        Object value = values[i];
        if (i > 0) {
          pieces[i] = pieces[i - 1];
          values[i] = values[i - 1];
          pieces[i - 1] = piece;
          values[i - 1] = value;
        }
        hits++;
        length = n;
        return value;
      }
    }
    return null;
  }

  void keep(byte[] piece, Object value) {
    int i = count < MOST ? count++ : MOST - 1;
    pieces[i] = piece;
    values[i] = value;
  }
}
