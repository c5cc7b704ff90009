package io.changeglot.kernel;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads messages of one shape, by one thread. A row of the problem and the shape's fields comes out. */
final class Reader {
  private static final UTF8String TRUE = UTF8String.fromString("true"), FALSE = UTF8String.fromString("false");
  private static final HashMap<Character, UTF8String> KINDS = new HashMap<>();

  static {
    String[] kinds = {"integer", "number", "string", "boolean", "null", "object", "array"};
    for (int i = 0; i < kinds.length; i++) KINDS.put("insbzoa".charAt(i), UTF8String.fromString(kinds[i]));
  }

  private final Shape top;
  private final Scanner in = new Scanner();
  private final Image image = new Image();
  private final Names names = new Names();
  private byte[] kinds = new byte[32];

  Reader(StructType shape) {
    top = new Shape(shape, true);
  }

  InternalRow read(byte[] message) {
    Object[] out = new Object[top.fields.length + 1];
    try {
      if (message.length > Scanner.MAX_BYTES) throw new Scanner.Bad("larger than " + Scanner.MAX_BYTES + " bytes");
      boolean bom = message.length > 2 && message[0] == (byte) 0xef && message[1] == (byte) 0xbb && message[2] == (byte) 0xbf;
      in.open(message, bom ? 3 : 0, message.length);
      if (in.peek() < 0) throw new Scanner.Bad("empty");
      struct(top, out, 1, null);
      if (in.peek() >= 0) throw in.bad("something follows the message");
    } catch (Scanner.Bad e) {
      Arrays.fill(out, null);
      out[0] = UTF8String.fromString(e.getMessage());
    }
    return new GenericInternalRow(out);
  }

  private UTF8String text(int from, int to, boolean escaped) {
    if (!escaped) return UTF8String.fromBytes(in.bytes, from, to - from);
    byte[] out = new byte[to - from];
    int n = Scanner.unescape(in.bytes, from, to, out, 0);
    return UTF8String.fromBytes(out, 0, n);
  }

  /** The value that is next, in the shape that is wanted; null for JSON null. */
  private Object value(Shape shape, UTF8String name) {
    int c = in.peek();
    int from = in.at;
    switch (shape.form) {
      case TEXT:
        switch (in.value()) {
          case 's': return text(from + 1, in.at - 1, in.escaped);
          case 'z': return null;
          case 'b': return c == 't' ? TRUE : FALSE;
          default: return UTF8String.fromBytes(in.bytes, from, in.at - from);
        }
      case RAW:
        if (in.value() == 'z') return null;
        return Arrays.copyOfRange(in.bytes, from, in.at);
      case KIND:
        return new GenericInternalRow(new Object[] {KINDS.get(in.value())});
      case VALUE: {
        char kind = in.value();
        UTF8String text = kind == 's' ? text(from + 1, in.at - 1, in.escaped)
            : kind == 'z' ? null : UTF8String.fromBytes(in.bytes, from, in.at - from);
        return new GenericInternalRow(new Object[] {KINDS.get(kind), text});
      }
      case IMAGE:
        return c == '{' ? image() : nullOr("an object");
      case STRUCT:
        if (c != '{' && shape.self < 0) return nullOr("an object");
        return remembered(shape, name);
      case ARRAY:
        return c == '[' || c == '{' ? remembered(shape, name) : nullOr("an array");
      case MAP:
        return c == '{' ? remembered(shape, name) : nullOr("an object");
      default:
        return scalar(shape.form, from);
    }
  }

  private Object nullOr(String wanted) {
    char kind = in.value();
    if (kind == 'z') return null;
    throw new Scanner.Bad("expected " + wanted + ", found " + a(kind));
  }

  /** The name of a JSON kind, NULL for null: it says nothing of a column. */
  static UTF8String kind(char letter) {
    return letter == 'z' ? null : KINDS.get(letter);
  }

  private static String a(char kind) {
    String name = KINDS.get(kind).toString();
    return kind == 'z' ? name : "aio".indexOf(name.charAt(0)) >= 0 ? "an " + name : "a " + name;
  }

  private Object scalar(Shape.Form form, int from) {
    char kind = in.value();
    int to = in.at;
    if (kind == 'z') return null;
    if (kind == 's') {
      from++;
      to--;
    }
    String wanted;
    if (form == Shape.Form.BOOLEAN) {
      String text = new String(in.bytes, from, to - from, java.nio.charset.StandardCharsets.UTF_8);
      if (text.equals("true")) return true;
      if (text.equals("false")) return false;
      wanted = "true or false";
    } else {
      wanted = "a whole number";
      int digits = from < to && in.bytes[from] == '-' ? to - from - 1 : to - from;
      boolean plain = digits > 0;
      for (int i = to - digits; i < to; i++) plain &= in.bytes[i] >= '0' && in.bytes[i] <= '9';
      if (plain && digits <= 18) {
        long v = 0;
        for (int i = to - digits; i < to; i++) v = 10 * v + in.bytes[i] - '0';
        if (digits < to - from) v = -v;
        if (form == Shape.Form.LONG) return v;
        if (form == Shape.Form.DECIMAL) return Decimal.apply(new java.math.BigDecimal(v), 20, 0);
        if (v == (int) v) return (int) v;
      } else if (plain && digits <= 20 && form != Shape.Form.INT) {
        var v = new java.math.BigInteger(new String(in.bytes, from, to - from, java.nio.charset.StandardCharsets.US_ASCII));
        if (form == Shape.Form.DECIMAL) return Decimal.apply(new java.math.BigDecimal(v), 20, 0);
        if (v.bitLength() < 64) return v.longValue();
      }
      if (plain) wanted = "a smaller number";
    }
    throw new Scanner.Bad("expected " + wanted + ", found " + a(kind));
  }

  private Object remembered(Shape shape, UTF8String name) {
    if (shape.memo == null || !shape.memo.useful() || shape.name >= 0) return container(shape, name);
    Object known = shape.memo.find(in.bytes, in.at, in.end);
    if (known != null) {
      in.at += shape.memo.length;
      return known;
    }
    int from = in.at;
    Object value = container(shape, name);
    byte[] piece = Arrays.copyOfRange(in.bytes, from, in.at);
    if (value == null || piece.length == 0 || (piece[0] != '{' && piece[0] != '[')) return value;
    value = shape.compacted(value);
    shape.memo.keep(piece, value);
    return value;
  }

  private Object container(Shape shape, UTF8String name) {
    switch (shape.form) {
      case STRUCT: {
        Object[] out = new Object[shape.fields.length];
        boolean isNull = struct(shape, out, 0, name);
        return isNull ? null : new GenericInternalRow(out);
      }
      case MAP: {
        ArrayList<Object> keys = new ArrayList<>(), values = new ArrayList<>();
        if (in.enter('}')) {
          do {
            keys.add(memberName());
            values.add(within(keys.get(keys.size() - 1), shape.element));
          } while (in.more('}'));
        }
        unique(keys);
        return new ArrayBasedMapData(new GenericArrayData(keys.toArray()), new GenericArrayData(values.toArray()));
      }
      default: {
        ArrayList<Object> all = new ArrayList<>();
        if (in.bytes[in.at] == '[') {
          if (in.enter(']')) {
            do {
              all.add(value(shape.element, null));
            } while (in.more(']'));
          }
        } else if (shape.element.name >= 0) {
          if (in.enter('}')) {
            ArrayList<Object> keys = new ArrayList<>();
            do {
              UTF8String key = memberName();
              keys.add(key);
              Object element = within(key, shape.element);
              if (element != null) all.add(element);
            } while (in.more('}'));
            unique(keys);
          }
        } else if (shape.element.form == Shape.Form.IMAGE || shape.element.form == Shape.Form.STRUCT) {
          all.add(value(shape.element, null));
        } else {
          return nullOr("an array");
        }
        return new GenericArrayData(all.toArray());
      }
    }
  }

  /** A member's value; what is wrong with it is told with the member's name. */
  private Object within(Object member, Shape shape) {
    try {
      return value(shape, member instanceof UTF8String ? (UTF8String) member : null);
    } catch (Scanner.Bad e) {
      throw e.in(member instanceof byte[] ? UTF8String.fromBytes((byte[]) member).toString() : String.valueOf(member));
    }
  }

  private static void unique(ArrayList<Object> keys) {
    if (keys.size() < 2) return;
    HashSet<Object> seen = new HashSet<>();
    for (Object key : keys) if (!seen.add(key)) throw new Scanner.Bad("two members named \"" + key + "\"");
  }

  private UTF8String memberName() {
    in.peek();
    int from = in.at + 1;
    in.string();
    UTF8String name = text(from, in.at - 1, in.escaped);
    in.expect(':');
    return name;
  }

  /** Reads an object into out[base..]; true if the value was JSON null. */
  private boolean struct(Shape shape, Object[] out, int base, UTF8String name) {
    if (in.peek() != '{') {
      if (shape.self < 0) return nullOr("an object") == null;
      Object self = value(shape.fields[shape.self], name);
      out[base + shape.self] = self;
      if (shape.name >= 0) out[base + shape.name] = name;
      return false;
    }
    int from = in.at;
    ArrayList<Object> restNames = null, rest = null;
    boolean restImage = shape.rest >= 0 && shape.fields[shape.rest].form == Shape.Form.IMAGE;
    if (restImage) beginImage();
    if (shape.name >= 0) out[base + shape.name] = name;
    if (in.enter('}')) {
      long seen = 0;
      int guess = 0;
      do {
        in.peek();
        int quoted = in.at, start = quoted + 1;
        in.string();
        int stop = in.at - 1, unquoted = in.at;
        byte[] key = in.bytes;
        if (in.escaped) {
          UTF8String plain = text(start, stop, true);
          key = plain.getBytes();
          start = 0;
          stop = key.length;
        }
        in.expect(':');
        int field = find(shape, key, start, stop, guess);
        if (field >= 0) {
          if ((seen & 1L << field) != 0) throw new Scanner.Bad("two members named \"" + UTF8String.fromBytes(shape.members[field]) + "\"");
          seen |= 1L << field;
          out[base + field] = within(shape.members[field], shape.fields[field]);
          guess = field + 1;
        } else if (restImage) {
          if (!names.next(in.bytes, quoted, unquoted)) names.add(in.bytes, quoted, unquoted);
          imageValue();
        } else if (shape.rest >= 0) {
          if (rest == null) {
            rest = new ArrayList<>();
            restNames = new ArrayList<>();
          }
          byte[] prefixed = Arrays.copyOf(shape.prefix, shape.prefix.length + stop - start);
          System.arraycopy(key, start, prefixed, shape.prefix.length, stop - start);
          in.peek();
          int piece = in.at;
          in.value();
          restNames.add(UTF8String.fromBytes(prefixed));
          rest.add(UTF8String.fromBytes(Arrays.copyOfRange(in.bytes, piece, in.at)));
        } else {
          in.value();
        }
      } while (in.more('}'));
    }
    if (restImage) out[base + shape.rest] = endImage();
    if (rest != null) {
      unique(restNames);
      out[base + shape.rest] =
          new ArrayBasedMapData(new GenericArrayData(restNames.toArray()), new GenericArrayData(rest.toArray()));
    }
    if (shape.self >= 0 && shape.fields[shape.self].form == Shape.Form.RAW) {
      out[base + shape.self] = Arrays.copyOfRange(in.bytes, from, in.at);
    }
    return false;
  }

  private static int find(Shape shape, byte[] key, int start, int stop, int guess) {
    byte[][] members = shape.members;
    for (int i = 0, n = members.length; i < n; i++) {
      int field = guess + i < n ? guess + i : guess + i - n;
      byte[] member = members[field];
      if (member != null && member.length == stop - start && Arrays.equals(member, 0, member.length, key, start, stop)) {
        return field;
      }
    }
    return -1;
  }

  private InternalRow image() {
    beginImage();
    if (in.enter('}')) {
      do {
        in.peek();
        int from = in.at;
        if (names.next(in.bytes, from, in.end)) {
          in.at += names.length;
        } else {
          in.string();
          names.add(in.bytes, from, in.at);
        }
        in.expect(':');
        imageValue();
      } while (in.more('}'));
    }
    return endImage();
  }

  private byte[] unescaped = new byte[0];
  private int used;

  private void beginImage() {
    image.begin();
    names.begin();
  }

  private void imageValue() {
    in.peek();
    int from = in.at, n = image.count();
    char kind = in.value();
    if (n == kinds.length) kinds = Arrays.copyOf(kinds, 2 * n);
    kinds[n] = (byte) kind;
    if (kind == 's') {
      int length = in.at - from - 2;
      if (in.escaped) {
        if (unescaped.length - used < length) {
          unescaped = new byte[Math.max(1024, 2 * length)];
          used = 0;
        }
        int to = Scanner.unescape(in.bytes, from + 1, in.at - 1, unescaped, used);
        image.add(unescaped, used, to - used);
        used = to;
      } else {
        image.add(in.bytes, from + 1, length);
      }
    } else if (kind == 'z') {
      image.add(null, 0, 0);
    } else {
      image.add(in.bytes, from, in.at - from);
    }
  }

  private InternalRow endImage() {
    byte[] block = names.block();
    image.useNames(block);
    UTF8String letters = UTF8String.fromBytes(Arrays.copyOf(kinds, image.count()));
    used = 0;
    return new GenericInternalRow(new Object[] {image.map(), letters});
  }
}
