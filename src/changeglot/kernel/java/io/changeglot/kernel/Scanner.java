package io.changeglot.kernel;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/**
 * A strict JSON scanner over bytes (RFC 8259), with limits. It allocates nothing while it scans: strings and numbers
 * are places in the message, so that no digit is lost and nothing is copied that is not asked for.
 */
final class Scanner {
  static final int MAX_DEPTH = 128;
  static final int MAX_BYTES = 64 << 20;

  /** What is wrong with a message. Has no stack trace: bad messages are ordinary data. */
  static final class Bad extends RuntimeException {
    private String path;

    Bad(String reason) {
      super(reason, null, false, false);
    }

    /** The same, found inside the named member. */
    Bad in(String member) {
      path = path == null ? member : member + "." + path;
      return this;
    }

    @Override
    public String getMessage() {
      return path == null ? super.getMessage() : path + ": " + super.getMessage();
    }
  }

  private static final VarHandle LONGS =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final long ONES = 0x0101010101010101L, HIGHS = 0x8080808080808080L;
  private static final long QUOTES = ONES * '"', BACKSLASHES = ONES * '\\', SPACES = ONES * ' ';

  byte[] bytes = new byte[0];
  int at;
  int end;
  int depth;

  /** Set by {@link #string()} and {@link #number()}. */
  boolean escaped;
  boolean whole;

  void open(byte[] message, int from, int to) {
    bytes = message;
    at = from;
    end = to;
    depth = 0;
  }

  Bad bad(String what) {
    return new Bad("not JSON at byte " + at + ": " + what);
  }

  /** The next byte that is no white space, not consumed; -1 at the end. */
  int peek() {
    while (at < end) {
      byte c = bytes[at];
      if (c > ' ' || (c != ' ' && c != '\n' && c != '\r' && c != '\t')) return c & 0xff;
      at++;
    }
    return -1;
  }

  void expect(char c) {
    if (at < end && bytes[at] == c) {
      at++;
      return;
    }
    int found = peek();
    if (found != c) throw bad("expected '" + c + "', found " + describe(found));
    at++;
  }

  private static String describe(int c) {
    if (c < 0) return "the end";
    return c >= 0x20 && c < 0x7f ? "'" + (char) c + "'" : String.format("byte 0x%02x", c);
  }

  /** After a member or element: true at a comma, false at `close`, which is consumed. */
  boolean more(char close) {
    int c = peek();
    at++;
    if (c == ',') return true;
    if (c == close) {
      depth--;
      return false;
    }
    at--;
    throw bad("expected ',' or '" + close + "', found " + describe(c));
  }

  /** Enters an object or array whose first byte is next; false if it is empty (and then already left). */
  boolean enter(char close) {
    if (++depth > MAX_DEPTH) throw new Bad("nested deeper than " + MAX_DEPTH);
    at++;
    if (peek() == close) {
      at++;
      depth--;
      return false;
    }
    return true;
  }

  /** Scans a string whose opening quote is next; leaves `at` after the closing quote. Its content is at start+1..at-1. */
  void string() {
    int p = at;
    if (p >= end || bytes[p] != '"') {
      peek();
      throw bad("expected a string, found " + describe(peek()));
    }
    escaped = false;
    p++;
    final byte[] b = bytes;
    final int last = end - 8;
    while (true) {
      while (p <= last) {
        long w = (long) LONGS.get(b, p);
        long q = w ^ QUOTES, s = w ^ BACKSLASHES;
        long stop = (((q - ONES) & ~q) | ((s - ONES) & ~s) | ((w - SPACES) & ~w) | w) & HIGHS;
        if (stop != 0) {
          p += Long.numberOfTrailingZeros(stop) >>> 3;
          break;
        }
        p += 8;
      }
      if (p >= end) {
        at = end;
        throw bad("the string does not end");
      }
      byte c = b[p];
      if (c == '"') {
        at = p + 1;
        return;
      }
      if (c == '\\') {
        escaped = true;
        p = escape(p);
      } else if (c < 0) {
        p = utf8(p);
      } else if (c < 0x20) {
        at = p;
        throw bad("a control character inside a string");
      } else {
        p++;
      }
    }
  }

  private int hex4(int p) {
    if (p + 4 > end) {
      at = end;
      throw bad("the string does not end");
    }
    int v = 0;
    for (int i = 0; i < 4; i++) {
      int d = Character.digit(bytes[p + i], 16);
      if (d < 0) {
        at = p + i;
        throw bad("a \\u escape needs four hexadecimal digits");
      }
      v = v << 4 | d;
    }
    return v;
  }

  private int escape(int p) {
    if (p + 1 >= end) {
      at = end;
      throw bad("the string does not end");
    }
    switch (bytes[p + 1]) {
      case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return p + 2;
      case 'u':
        int unit = hex4(p + 2);
        if (!Character.isSurrogate((char) unit)) return p + 6;
        boolean pair = Character.isHighSurrogate((char) unit) && p + 8 <= end && bytes[p + 6] == '\\'
            && bytes[p + 7] == 'u' && Character.isLowSurrogate((char) hex4(p + 8));
        if (pair) return p + 12;
        at = p;
        throw bad("half of a surrogate pair");
      default:
        at = p;
        throw bad("an unknown escape");
    }
  }

  /** Checks one UTF-8 sequence (no overlong form, no surrogate, nothing past U+10FFFF). */
  private int utf8(int p) {
    final byte[] b = bytes;
    int c = b[p] & 0xff, more = c >= 0xc2 && c <= 0xdf ? 1 : c >= 0xe0 && c <= 0xef ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
    boolean good = more > 0 && p + more < end;
    for (int i = 1; good && i <= more; i++) good = (b[p + i] & 0xc0) == 0x80;
    if (good && more > 1) {
      int second = b[p + 1] & 0xff;
      good = !(c == 0xe0 && second < 0xa0) && !(c == 0xed && second > 0x9f)
          && !(c == 0xf0 && second < 0x90) && !(c == 0xf4 && second > 0x8f);
    }
    if (!good) {
      at = p;
      throw bad("not UTF-8");
    }
    return p + more + 1;
  }

  private static boolean digit(byte c) {
    return c >= '0' && c <= '9';
  }

  private int digits(int p) {
    int from = p;
    while (p < end && digit(bytes[p])) p++;
    if (p == from) {
      at = p;
      throw bad("a number needs digits here");
    }
    return p;
  }

  /** Scans a number that is next; sets `whole` if it has neither fraction nor exponent. */
  void number() {
    int p = at;
    whole = true;
    if (bytes[p] == '-') p++;
    int from = p;
    p = digits(p);
    if (bytes[from] == '0' && p > from + 1) {
      at = from;
      throw bad("a number must not begin with 0");
    }
    if (p < end && bytes[p] == '.') {
      whole = false;
      p = digits(p + 1);
    }
    if (p < end && (bytes[p] | 0x20) == 'e') {
      whole = false;
      p++;
      if (p < end && (bytes[p] == '+' || bytes[p] == '-')) p++;
      p = digits(p);
    }
    at = p;
  }

  private void word(String word) {
    for (int i = 0; i < word.length(); i++) {
      if (at + i >= end || bytes[at + i] != word.charAt(i)) throw bad("expected " + word);
    }
    at += word.length();
  }

  /** Scans any value; gives its kind: i whole number, n other number, s string, b boolean, z null, o object, a array. */
  char value() {
    int c = peek();
    switch (c) {
      case '"':
        string();
        return 's';
      case '{':
        if (enter('}')) {
          do {
            peek();
            string();
            expect(':');
            value();
          } while (more('}'));
        }
        return 'o';
      case '[':
        if (enter(']')) {
          do {
            value();
          } while (more(']'));
        }
        return 'a';
      case 't':
        word("true");
        return 'b';
      case 'f':
        word("false");
        return 'b';
      case 'n':
        word("null");
        return 'z';
      default:
        if (c != '-' && (c < '0' || c > '9')) throw bad("expected a value, found " + describe(c));
        number();
        return whole ? 'i' : 'n';
    }
  }

  /** True if the bytes are one JSON value and nothing else. */
  boolean holds(byte[] text, int from, int to) {
    open(text, from, to);
    try {
      value();
      return peek() < 0;
    } catch (Bad e) {
      return false;
    }
  }

  /** The content of an escaped string at from..to (without its quotes), which was scanned before, as UTF-8. */
  static int unescape(byte[] b, int from, int to, byte[] out, int n) {
    for (int p = from; p < to; p++) {
      byte c = b[p];
      if (c != '\\') {
        out[n++] = c;
        continue;
      }
      switch (b[++p]) {
        case 'b': out[n++] = '\b'; break;
        case 'f': out[n++] = '\f'; break;
        case 'n': out[n++] = '\n'; break;
        case 'r': out[n++] = '\r'; break;
        case 't': out[n++] = '\t'; break;
        case 'u':
          int code = unit(b, p + 1);
          p += 4;
          if (Character.isHighSurrogate((char) code)) {
            code = Character.toCodePoint((char) code, (char) unit(b, p + 3));
            p += 6;
          }
          byte[] utf8 = Character.toString(code).getBytes(StandardCharsets.UTF_8);
          System.arraycopy(utf8, 0, out, n, utf8.length);
          n += utf8.length;
          break;
        default: out[n++] = b[p];
      }
    }
    return n;
  }

  private static int unit(byte[] b, int p) {
    int v = 0;
    for (int i = 0; i < 4; i++) v = v << 4 | Character.digit(b[p + i], 16);
    return v;
  }
}
