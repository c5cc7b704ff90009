package io.changeglot.kernel;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.types.*;

/**
 * What is wanted of a JSON value, told by a Spark type:
 *
 * <ul>
 *   <li>STRING: exact text of a scalar, the piece of the message for an object or array;
 *   <li>BINARY: the piece of the message, whatever it is but null;
 *   <li>BIGINT, INT, DECIMAL(20, 0), BOOLEAN: as a number, true or false, or a string of one;
 *   <li>STRUCT: the named members of an object. `a=b` puts member b into field a; `a=.` is the value itself, `a=@` its
 *       name in the object around it, `a=*p` a MAP of all other members as JSON text, their names prefixed with p, or
 *       a row image of them;
 *   <li>STRUCT&lt;kind STRING&gt;, STRUCT&lt;kind STRING, text STRING&gt;: any value with its JSON kind; NULL only if absent;
 *   <li>STRUCT&lt;values MAP&lt;STRING, STRING&gt;, kinds STRING&gt;: a row image, with a letter for each value's kind;
 *   <li>ARRAY: an array; an object becomes its members if the elements ask for their name, else the only element;
 *   <li>MAP&lt;STRING, T&gt;: an object.
 * </ul>
 */
final class Shape {
  enum Form { TEXT, RAW, LONG, INT, DECIMAL, BOOLEAN, STRUCT, KIND, VALUE, IMAGE, ARRAY, MAP }

  final Form form;
  final DataType type;

  /** Of a STRUCT. */
  final byte[][] members;
  final Shape[] fields;
  int self = -1, name = -1, rest = -1;
  byte[] prefix;

  /** Of an ARRAY or MAP. */
  final Shape element;

  /** Of what may repeat from message to message; else null. */
  final Memo memo;
  private UnsafeProjection compact;

  static final StructType IMAGE = new StructType()
      .add("values", DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType, true))
      .add("kinds", DataTypes.StringType);
  static final StructType VALUE = new StructType().add("kind", DataTypes.StringType).add("text", DataTypes.StringType);
  static final StructType KIND = new StructType().add("kind", DataTypes.StringType);

  Shape(DataType declared, boolean top) {
    type = result(declared);
    byte[][] names = null;
    Shape[] inner = null;
    Shape of = null;
    if (same(declared, IMAGE)) {
      form = Form.IMAGE;
    } else if (same(declared, VALUE)) {
      form = Form.VALUE;
    } else if (same(declared, KIND)) {
      form = Form.KIND;
    } else if (declared instanceof StructType) {
      form = Form.STRUCT;
      StructField[] all = ((StructType) declared).fields();
      names = new byte[all.length][];
      inner = new Shape[all.length];
      for (int i = 0; i < all.length; i++) {
        String member = member(all[i].name());
        if (member.equals(".")) self = i;
        else if (member.equals("@")) name = i;
        else if (member.startsWith("*")) {
          rest = i;
          prefix = member.substring(1).getBytes(StandardCharsets.UTF_8);
        } else names[i] = member.getBytes(StandardCharsets.UTF_8);
        inner[i] = new Shape(all[i].dataType(), false);
      }
    } else if (declared instanceof ArrayType) {
      form = Form.ARRAY;
      of = new Shape(((ArrayType) declared).elementType(), false);
    } else if (declared instanceof MapType) {
      form = Form.MAP;
      of = new Shape(((MapType) declared).valueType(), false);
    } else if (declared instanceof StringType) form = Form.TEXT;
    else if (declared instanceof BinaryType) form = Form.RAW;
    else if (declared instanceof LongType) form = Form.LONG;
    else if (declared instanceof IntegerType) form = Form.INT;
    else if (declared instanceof BooleanType) form = Form.BOOLEAN;
    else if (declared.equals(DataTypes.createDecimalType(20, 0))) form = Form.DECIMAL;
    else throw new UnsupportedOperationException("no JSON is read as " + declared.sql());
    members = names;
    fields = inner;
    element = of;
    boolean container = form == Form.STRUCT || form == Form.ARRAY || form == Form.MAP;
    memo = container && !top && !holdsImage() ? new Memo() : null;
  }

  private boolean holdsImage() {
    if (form == Form.IMAGE || form == Form.VALUE) return true;
    if (element != null) return element.holdsImage();
    if (fields != null) for (Shape field : fields) if (field.holdsImage()) return true;
    return false;
  }

  private static boolean same(DataType a, StructType b) {
    return a instanceof StructType && a.sql().equals(b.sql());
  }

  private static String member(String name) {
    int cut = name.indexOf('=');
    return cut < 0 ? name : name.substring(cut + 1);
  }

  /** The declared type with the field names that come out. */
  static DataType result(DataType declared) {
    if (declared instanceof StructType) {
      StructType out = new StructType();
      for (StructField f : ((StructType) declared).fields()) {
        int cut = f.name().indexOf('=');
        out = out.add(cut < 0 ? f.name() : f.name().substring(0, cut), result(f.dataType()), true);
      }
      return out;
    }
    if (declared instanceof ArrayType) return new ArrayType(result(((ArrayType) declared).elementType()), true);
    if (declared instanceof MapType) {
      return new MapType(DataTypes.StringType, result(((MapType) declared).valueType()), true);
    }
    return declared;
  }

  /** A value of this shape in Spark's own layout, apart from the message it came from. */
  Object compacted(Object value) {
    if (compact == null) compact = UnsafeProjection.create(new DataType[] {type});
    var row = compact.apply(new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(new Object[] {value}));
    if (form == Form.STRUCT) return row.getStruct(0, fields.length).copy();
    return form == Form.ARRAY ? row.getArray(0).copy() : row.getMap(0).copy();
  }
}
