package io.changeglot.kernel;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes a Spark value as JSON, by one thread: what {@link Shape} reads, this writes.
 *
 * <p>A struct field named `a?` is left out when NULL, else NULL is null. A field named `*p` is a MAP of JSON texts: those
 * whose names begin with p become members, without p, unless the struct has that member; or a row image. A field named `a@...` is a list of structs, each
 * with a name: `a@type` writes an object of their types by name, `a@{t=type}` of objects with member t, `a@n=name,t?=type`
 * an array of objects, which have no member t where it is NULL. BINARY is JSON already. What should be JSON and is not becomes a
 * string, so that the message always is JSON.
 */
final class Writer {
  private byte[] out = new byte[1024];
  private int n;
  private final Scanner check = new Scanner();
  private final Node top;

  private static final class Node {
    final Shape.Form form;
    final DataType type;
    Node[] fields;
    /** The members' names; and the same in quotes, with the colon. */
    byte[][] heads, quoted;
    /** Which of the members are left out when NULL; those of `a@...` too. */
    boolean[] optional;
    byte[] spread;

    /** Of `a@...`: the members to write of each struct and where they stand. */
    byte[][] members;
    int[] places;
    boolean byName, nested;

    /** What lists became; what was seen to be JSON. */
    final Memo known = new Memo();

    void list(String spec) {
      nested = spec.startsWith("{");
      if (nested) spec = spec.substring(1, spec.length() - 1);
      byName = nested || !spec.contains("=");
      String[] parts = spec.split(",");
      members = new byte[parts.length][];
      places = new int[parts.length];
      optional = new boolean[parts.length];
      StructType element = (StructType) ((ArrayType) type).elementType();
      for (int i = 0; i < parts.length; i++) {
        String[] names = parts[i].split("=");
        optional[i] = names[0].endsWith("?");
        members[i] = (optional[i] ? names[0].substring(0, names[0].length() - 1) : names[0]).getBytes(StandardCharsets.UTF_8);
        places[i] = element.fieldIndex(names[names.length - 1]);
      }
    }

    boolean declares(byte[] member) {
      for (byte[] head : heads) if (head != null && Arrays.equals(head, member)) return true;
      return false;
    }

    Node(DataType type) {
      this.type = type;
      if (type instanceof StructType && type.sql().equals(Shape.IMAGE.sql())) form = Shape.Form.IMAGE;
      else if (type instanceof StructType && type.sql().equals(Shape.VALUE.sql())) form = Shape.Form.VALUE;
      else if (type instanceof StructType) {
        form = Shape.Form.STRUCT;
        StructField[] all = ((StructType) type).fields();
        fields = new Node[all.length];
        heads = new byte[all.length][];
        quoted = new byte[all.length][];
        optional = new boolean[all.length];
        for (int i = 0; i < all.length; i++) {
          String name = all[i].name();
          fields[i] = new Node(all[i].dataType());
          if (name.startsWith("*")) {
            fields[i].spread = name.substring(1).getBytes(StandardCharsets.UTF_8);
            continue;
          }
          int cut = name.indexOf('@');
          if (cut >= 0) {
            fields[i].list(name.substring(cut + 1));
            name = name.substring(0, cut);
          }
          optional[i] = name.endsWith("?");
          heads[i] = (optional[i] ? name.substring(0, name.length() - 1) : name).getBytes(StandardCharsets.UTF_8);
          quoted[i] = quoted(heads[i]);
        }
      } else if (type instanceof ArrayType) {
        form = Shape.Form.ARRAY;
        fields = new Node[] {new Node(((ArrayType) type).elementType())};
      } else if (type instanceof MapType) {
        form = Shape.Form.MAP;
        fields = new Node[] {new Node(((MapType) type).valueType())};
      } else if (type instanceof StringType) form = Shape.Form.TEXT;
      else if (type instanceof BinaryType) form = Shape.Form.RAW;
      else if (type instanceof LongType) form = Shape.Form.LONG;
      else if (type instanceof IntegerType) form = Shape.Form.INT;
      else if (type instanceof BooleanType) form = Shape.Form.BOOLEAN;
      else if (type instanceof DecimalType && ((DecimalType) type).scale() == 0) form = Shape.Form.DECIMAL;
      else if (type instanceof NullType) form = Shape.Form.KIND;
      else throw new UnsupportedOperationException("no JSON is written of " + type.sql());
    }
  }

  Writer(DataType type) {
    top = new Node(type);
  }

  /** Of a list, what stands behind the @ of a field that has it. */
  Writer(ArrayType type, String spec) {
    this(type);
    top.list(spec);
  }

  private static byte[] quoted(byte[] name) {
    Writer writer = new Writer(DataTypes.StringType);
    writer.string(name);
    writer.put(':');
    return Arrays.copyOf(writer.out, writer.n);
  }

  byte[] write(InternalRow row) {
    n = 0;
    struct(top, row);
    return Arrays.copyOf(out, n);
  }

  byte[] write(ArrayData list) {
    n = 0;
    remembered(top, list);
    return Arrays.copyOf(out, n);
  }

  byte[] write(UTF8String text) {
    n = 0;
    string(text.getBytes());
    return Arrays.copyOf(out, n);
  }

  private void room(int more) {
    if (n + more > out.length) out = Arrays.copyOf(out, Math.max(2 * out.length, n + more));
  }

  private void put(char c) {
    room(1);
    out[n++] = (byte) c;
  }

  private void put(byte[] bytes) {
    room(bytes.length);
    System.arraycopy(bytes, 0, out, n, bytes.length);
    n += bytes.length;
  }

  private void put(UTF8String text) {
    int length = text.numBytes();
    room(length);
    Platform.copyMemory(text.getBaseObject(), text.getBaseOffset(), out, Platform.BYTE_ARRAY_OFFSET + n, length);
    n += length;
  }

  private static final byte[] NULL = {'n', 'u', 'l', 'l'};
  private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

  private void string(UTF8String text) {
    int length = text.numBytes();
    room(length + 2);
    out[n++] = '"';
    int from = n;
    Platform.copyMemory(text.getBaseObject(), text.getBaseOffset(), out, Platform.BYTE_ARRAY_OFFSET + n, length);
    for (int i = from, end = from + length; i < end; i++) {
      byte c = out[i];
      if (c == '"' || c == '\\' || (c < 0x20 && c >= 0)) {
        n = from - 1;
        string(text.getBytes());
        return;
      }
    }
    n = from + length;
    out[n++] = '"';
  }

  private void string(byte[] text) {
    room(6 * text.length + 2);
    out[n++] = '"';
    for (byte c : text) {
      if (c == '"' || c == '\\') {
        out[n++] = '\\';
        out[n++] = c;
      } else if (c >= 0x20 || c < 0) {
        out[n++] = c;
      } else {
        int letter = "\b\f\n\r\t".indexOf(c);
        out[n++] = '\\';
        if (letter >= 0) {
          out[n++] = (byte) "bfnrt".charAt(letter);
        } else {
          out[n++] = 'u';
          out[n++] = '0';
          out[n++] = '0';
          out[n++] = HEX[c >> 4];
          out[n++] = HEX[c & 15];
        }
      }
    }
    out[n++] = '"';
  }

  /** A piece of JSON that may well be the same in the next message, such as a schema. */
  private void json(Node node, byte[] text) {
    if (text.length < 64 || !node.known.useful()) {
      json(text);
    } else if (node.known.find(text, 0, text.length) != null && node.known.length == text.length) {
      put(text);
    } else {
      int from = n;
      json(text);
      if (n - from == text.length) node.known.keep(text.clone(), text);
    }
  }

  private void json(byte[] text) {
    if (check.holds(text, 0, text.length)) put(text);
    else string(text);
  }

  private void struct(Node node, InternalRow row) {
    put('{');
    boolean first = true;
    for (int i = 0; i < node.fields.length; i++) {
      Node field = node.fields[i];
      boolean isNull = row.isNullAt(i);
      if (field.spread != null) {
        if (isNull) continue;
        if (field.form == Shape.Form.IMAGE) first = members(row.getStruct(i, 2), first);
        else first = spread(node, field.spread, row.getMap(i), first);
        continue;
      }
      if (isNull && node.optional[i]) continue;
      if (!first) put(',');
      first = false;
      put(node.quoted[i]);
      if (isNull) put(NULL);
      else value(field, row, i);
    }
    put('}');
  }

  private boolean spread(Node around, byte[] prefix, MapData map, boolean first) {
    ArrayData names = map.keyArray(), texts = map.valueArray();
    for (int i = 0; i < map.numElements(); i++) {
      byte[] name = names.getUTF8String(i).getBytes();
      if (name.length < prefix.length || !Arrays.equals(name, 0, prefix.length, prefix, 0, prefix.length)) continue;
      byte[] member = Arrays.copyOfRange(name, prefix.length, name.length);
      if (around.declares(member)) continue;
      if (!first) put(',');
      first = false;
      string(member);
      put(':');
      if (texts.isNullAt(i)) put(NULL);
      else json(texts.getUTF8String(i).getBytes());
    }
    return first;
  }

  private void value(Node node, SpecializedGetters in, int i) {
    switch (node.form) {
      case TEXT: string(in.getUTF8String(i)); break;
      case RAW: json(node, in.getBinary(i)); break;
      case LONG: put(Long.toString(in.getLong(i)).getBytes(StandardCharsets.US_ASCII)); break;
      case INT: put(Integer.toString(in.getInt(i)).getBytes(StandardCharsets.US_ASCII)); break;
      case BOOLEAN: put((in.getBoolean(i) ? "true" : "false").getBytes(StandardCharsets.US_ASCII)); break;
      case DECIMAL: {
        DecimalType type = (DecimalType) node.type;
        put(in.getDecimal(i, type.precision(), 0).toString().getBytes(StandardCharsets.US_ASCII));
        break;
      }
      case STRUCT: struct(node, in.getStruct(i, node.fields.length)); break;
      case VALUE: {
        InternalRow v = in.getStruct(i, 2);
        boolean text = !v.isNullAt(0) && v.getUTF8String(0).equals(STRING);
        if (v.isNullAt(1)) put(NULL);
        else if (text) string(v.getUTF8String(1));
        else json(v.getUTF8String(1).getBytes());
        break;
      }
      case IMAGE: image(in.getStruct(i, 2)); break;
      case ARRAY: {
        ArrayData array = in.getArray(i);
        if (node.members != null) {
          remembered(node, array);
          break;
        }
        put('[');
        for (int k = 0; k < array.numElements(); k++) {
          if (k > 0) put(',');
          if (array.isNullAt(k)) put(NULL);
          else value(node.fields[0], array, k);
        }
        put(']');
        break;
      }
      case MAP: {
        MapData map = in.getMap(i);
        put('{');
        for (int k = 0; k < map.numElements(); k++) {
          if (k > 0) put(',');
          string(map.keyArray().getUTF8String(k));
          put(':');
          if (map.valueArray().isNullAt(k)) put(NULL);
          else value(node.fields[0], map.valueArray(), k);
        }
        put('}');
        break;
      }
      default: put(NULL);
    }
  }

  private static final UTF8String STRING = UTF8String.fromString("string");

  private void image(InternalRow image) {
    put('{');
    members(image, true);
    put('}');
  }

  private boolean members(InternalRow image, boolean first) {
    MapData map = image.getMap(0);
    UTF8String kinds = image.getUTF8String(1);
    ArrayData names = map.keyArray(), values = map.valueArray();
    for (int i = 0, count = map.numElements(); i < count; i++) {
      if (!first) put(',');
      first = false;
      string(names.getUTF8String(i));
      put(':');
      if (values.isNullAt(i)) {
        put(NULL);
        continue;
      }
      UTF8String text = values.getUTF8String(i);
      char kind = (char) kinds.getByte(i);
      if (kind == 's') string(text);
      else if (kind == 'i' || kind == 'n') put(text);
      else json(text.getBytes());
    }
    return first;
  }

  private byte[] signature = new byte[1024];

  private void remembered(Node node, ArrayData array) {
    if (!(array instanceof UnsafeArrayData) || !node.known.useful()) {
      list(node, array);
      return;
    }
    UnsafeArrayData a = (UnsafeArrayData) array;
    int size = a.getSizeInBytes();
    if (signature.length < size) signature = new byte[2 * size];
    Platform.copyMemory(a.getBaseObject(), a.getBaseOffset(), signature, Platform.BYTE_ARRAY_OFFSET, size);
    Object known = node.known.find(signature, 0, size);
    if (known != null && node.known.length == size) {
      put((byte[]) known);
      return;
    }
    int from = n;
    list(node, array);
    node.known.keep(Arrays.copyOf(signature, size), Arrays.copyOfRange(out, from, n));
  }

  private void list(Node node, ArrayData array) {
    Node element = node.fields[0];
    put(node.byName ? '{' : '[');
    boolean first = true;
    for (int k = 0; k < array.numElements(); k++) {
      if (array.isNullAt(k)) continue;
      InternalRow row = array.getStruct(k, element.fields.length);
      if (node.byName && (row.isNullAt(0) || row.isNullAt(node.places[0]))) continue;
      if (!first) put(',');
      first = false;
      if (node.byName) {
        string(row.getUTF8String(0));
        put(':');
        if (!node.nested) {
          value(element.fields[node.places[0]], row, node.places[0]);
          continue;
        }
      }
      put('{');
      boolean none = true;
      for (int m = 0; m < node.members.length; m++) {
        boolean isNull = row.isNullAt(node.places[m]);
        if (isNull && node.optional[m]) continue;
        if (!none) put(',');
        none = false;
        string(node.members[m]);
        put(':');
        if (isNull) put(NULL);
        else value(element.fields[node.places[m]], row, node.places[m]);
      }
      put('}');
    }
    put(node.byName ? '}' : ']');
  }
}
