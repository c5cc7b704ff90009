package io.changeglot.kernel;

import java.util.BitSet;
import java.util.HashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Tells in which fields two structs of one type differ, by one thread. NULL is like NULL; the entries of a MAP have no
 * order; a STRUCT of nothing but NULL is like NULL.
 */
final class Likeness {
  private final StructField[] fields;
  private final UTF8String[] names;
  private final HashMap<BitSet, ArrayData> answers = new HashMap<>();

  Likeness(StructType type) {
    fields = type.fields();
    names = new UTF8String[fields.length];
    for (int i = 0; i < fields.length; i++) names[i] = UTF8String.fromString(fields[i].name());
  }

  /** The names of the fields that differ. */
  ArrayData unlike(InternalRow a, InternalRow b) {
    BitSet found = new BitSet();
    for (int i = 0; i < fields.length; i++) if (!same(fields[i].dataType(), a, b, i)) found.set(i);
    ArrayData known = answers.get(found);
    if (known == null) {
      known = new GenericArrayData(found.stream().mapToObj(i -> names[i]).toArray());
      if (answers.size() < 1024) answers.put(found, known);
    }
    return known;
  }

  private static boolean same(DataType type, SpecializedGetters a, SpecializedGetters b, int i) {
    boolean none = a == null || a.isNullAt(i), other = b == null || b.isNullAt(i);
    if (type instanceof StructType) {
      StructType struct = (StructType) type;
      if (none && other) return true;
      InternalRow x = none ? null : a.getStruct(i, struct.length()), y = other ? null : b.getStruct(i, struct.length());
      for (int f = 0; f < struct.length(); f++) if (!same(struct.apply(f).dataType(), x, y, f)) return false;
      return true;
    }
    if (none || other) return none == other;
    if (type instanceof MapType) return same((MapType) type, a.getMap(i), b.getMap(i));
    if (type instanceof ArrayType) return same(((ArrayType) type).elementType(), a.getArray(i), b.getArray(i));
    return a.get(i, type).equals(b.get(i, type));
  }

  private static boolean same(DataType element, ArrayData a, ArrayData b) {
    if (a == b || a instanceof UnsafeArrayData && a.equals(b)) return true;
    int n = a.numElements();
    if (n != b.numElements()) return false;
    for (int i = 0; i < n; i++) if (!same(element, a, b, i)) return false;
    return true;
  }

  private static boolean same(MapType type, MapData a, MapData b) {
    if (a == b) return true;
    int n = a.numElements();
    if (n != b.numElements()) return false;
    ArrayData names = a.keyArray(), others = b.keyArray(), values = a.valueArray(), otherValues = b.valueArray();
    if (a instanceof UnsafeMapData && names.equals(others) && values.equals(otherValues)) return true;
    for (int i = 0; i < n; i++) {
      int at = Image.find(others, names.getUTF8String(i));
      if (at < 0) return false;
      if (values.isNullAt(i) || otherValues.isNullAt(at)) {
        if (values.isNullAt(i) != otherValues.isNullAt(at)) return false;
      } else if (!values.get(i, type.valueType()).equals(otherValues.get(at, type.valueType()))) return false;
    }
    return true;
  }
}
