package io.changeglot.kernel;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Remembers the lists of names that row images come with. The rows of a table repeat them in the same order, so that a
 * known list is followed by comparing bytes, and its block of names is ready.
 */
final class Names {
  private static final int MOST = 256;

  private static final class Known {
    byte[][] quoted;
    byte[] block;
  }

  private final ArrayList<Known> lists = new ArrayList<>();
  private final HashMap<UTF8String, byte[]> interned = new HashMap<>();
  private final ArrayList<byte[]> current = new ArrayList<>();
  private int guess, position;

  /** Set by {@link #next}: how many bytes the name has, quotes included. */
  int length;

  void begin() {
    current.clear();
    position = 0;
    if (guess < 0) guess = 0;
  }

  private static boolean at(byte[] quoted, byte[] bytes, int at, int end) {
    int n = quoted.length;
    return n <= end - at && Arrays.equals(bytes, at, at + n, quoted, 0, n);
  }

  private boolean begins(Known list) {
    if (list.quoted.length <= position) return false;
    for (int i = 0; i < position; i++) if (list.quoted[i] != current.get(i)) return false;
    return true;
  }

  /** True if the next name is one that a known list has here. */
  boolean next(byte[] bytes, int at, int end) {
    if (guess < 0 || lists.isEmpty()) return false;
    Known list = lists.get(guess);
    if (position >= list.quoted.length || !at(list.quoted[position], bytes, at, end)) {
      int other = -1;
      for (int i = 0; i < lists.size() && other < 0; i++) {
        Known candidate = lists.get(i);
        if (i != guess && begins(candidate) && at(candidate.quoted[position], bytes, at, end)) other = i;
      }
      guess = other;
      if (other < 0) return false;
      list = lists.get(other);
    }
    byte[] quoted = list.quoted[position++];
    current.add(quoted);
    length = quoted.length;
    return true;
  }

  /** A name that no known list has here. */
  void add(byte[] bytes, int from, int to) {
    guess = -1;
    position++;
    UTF8String quoted = UTF8String.fromBytes(bytes, from, to - from);
    byte[] same = interned.get(quoted);
    if (same == null) {
      same = Arrays.copyOfRange(bytes, from, to);
      if (interned.size() < 100 * MOST) interned.put(UTF8String.fromBytes(same), same);
    }
    current.add(same);
  }

  /** The names of this image as a block of Spark's array layout. */
  byte[] block() {
    if (guess >= 0 && !lists.isEmpty()) {
      if (lists.get(guess).quoted.length == position) return lists.get(guess).block;
      for (int i = 0; i < lists.size(); i++) {
        if (lists.get(i).quoted.length == position && sameStart(lists.get(i))) {
          guess = i;
          return lists.get(i).block;
        }
      }
    }
    Known list = new Known();
    list.quoted = current.toArray(new byte[0][]);
    Image names = new Image();
    names.begin();
    HashSet<UTF8String> seen = new HashSet<>();
    for (byte[] quoted : list.quoted) {
      byte[] plain = new byte[quoted.length];
      int n = Scanner.unescape(quoted, 1, quoted.length - 1, plain, 0);
      if (!seen.add(UTF8String.fromBytes(plain, 0, n))) {
        guess = -1;
        throw new Scanner.Bad("two members named \"" + UTF8String.fromBytes(plain, 0, n) + "\"");
      }
      names.add(plain, 0, n);
    }
    list.block = names.block();
    if (lists.size() < MOST) {
      lists.add(list);
      guess = lists.size() - 1;
    } else {
      guess = -1;
    }
    return list.block;
  }

  private boolean sameStart(Known list) {
    for (int i = 0; i < position; i++) if (list.quoted[i] != current.get(i)) return false;
    return true;
  }
}
