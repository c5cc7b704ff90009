package io.changeglot.kernel;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.array.ByteArrayMethods;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Builds a MAP&lt;STRING, STRING&gt; in Spark's own memory layout, so that the row that leaves the stage takes it with one
 * copy. Values may be pieces of a message: nothing is made of them on the way.
 */
final class Image {
  /** The entries' names: a ready block of Spark's array layout, somewhere in these bytes. */
  private byte[] names;
  private int namesStart, namesLength;
  private int count;
  private byte[][] sources = new byte[32][];
  private int[] starts = new int[32];
  private int[] lengths = new int[32];

  void begin() {
    count = 0;
    names = null;
  }

  int count() {
    return count;
  }

  /** Adds the next value; a NULL has no source. */
  void add(byte[] source, int start, int length) {
    if (count == starts.length) {
      sources = Arrays.copyOf(sources, 2 * count);
      starts = Arrays.copyOf(starts, 2 * count);
      lengths = Arrays.copyOf(lengths, 2 * count);
    }
    sources[count] = source;
    starts[count] = start;
    lengths[count++] = length;
  }

  /** Adds a value of an array; where Spark's layout allows it, without an object for it. */
  void add(ArrayData array, int i) {
    if (array.isNullAt(i)) {
      add(null, 0, 0);
    } else if (array instanceof UnsafeArrayData && ((UnsafeArrayData) array).getBaseObject() instanceof byte[]) {
      UnsafeArrayData block = (UnsafeArrayData) array;
      long place = block.getLong(i);
      int base = (int) (block.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
      add((byte[]) block.getBaseObject(), base + (int) (place >>> 32), (int) place);
    } else {
      add(array.getUTF8String(i));
    }
  }

  void add(UTF8String text) {
    if (text == null) {
      add(null, 0, 0);
    } else {
      Object base = text.getBaseObject();
      boolean direct = base instanceof byte[];
      byte[] bytes = direct ? (byte[]) base : text.getBytes();
      add(bytes, direct ? (int) (text.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET) : 0, text.numBytes());
    }
  }

  /** The values so far become the names of the map that is built next. */
  void beginValues() {
    useNames(block());
    count = 0;
  }

  void useNames(byte[] block) {
    names = block;
    namesStart = 0;
    namesLength = block.length;
  }

  /** The names of the map that is built next are those of another. */
  void useNamesOf(MapData map) {
    ArrayData keys = map.keyArray();
    if (keys instanceof UnsafeArrayData && ((UnsafeArrayData) keys).getBaseObject() instanceof byte[]) {
      UnsafeArrayData block = (UnsafeArrayData) keys;
      names = (byte[]) block.getBaseObject();
      namesStart = (int) (block.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
      namesLength = block.getSizeInBytes();
    } else {
      useNames(namesOf(map));
    }
  }

  private static int round8(int n) {
    return n + 7 & ~7;
  }

  private int size() {
    int size = 8 + (count + 63) / 64 * 8 + 8 * count;
    for (int i = 0; i < count; i++) size += round8(lengths[i]);
    return size;
  }

  private void write(byte[] out, int base) {
    Platform.putLong(out, Platform.BYTE_ARRAY_OFFSET + base, count);
    int nulls = base + 8, fixed = nulls + (count + 63) / 64 * 8, variable = fixed + 8 * count;
    for (int i = 0; i < count; i++) {
      if (sources[i] == null) {
        out[nulls + (i >> 3)] |= (byte) (1 << (i & 7));
        continue;
      }
      int length = lengths[i];
      System.arraycopy(sources[i], starts[i], out, variable, length);
      long place = (long) (variable - base) << 32 | length;
      Platform.putLong(out, Platform.BYTE_ARRAY_OFFSET + fixed + 8L * i, place);
      variable += round8(length);
    }
  }

  byte[] block() {
    byte[] out = new byte[size()];
    write(out, 0);
    return out;
  }

  UnsafeMapData map() {
    int size = 8 + namesLength + size();
    byte[] out = new byte[size];
    Platform.putLong(out, Platform.BYTE_ARRAY_OFFSET, namesLength);
    System.arraycopy(names, namesStart, out, 8, namesLength);
    write(out, 8 + namesLength);
    UnsafeMapData map = new UnsafeMapData();
    map.pointTo(out, Platform.BYTE_ARRAY_OFFSET, size);
    return map;
  }

  /** The names of a map as a block, by one copy where Spark's layout allows it. */
  byte[] namesOf(MapData map) {
    if (map instanceof UnsafeMapData) {
      var keys = ((UnsafeMapData) map).keyArray();
      byte[] block = new byte[keys.getSizeInBytes()];
      Platform.copyMemory(keys.getBaseObject(), keys.getBaseOffset(), block, Platform.BYTE_ARRAY_OFFSET, block.length);
      return block;
    }
    ArrayData keys = map.keyArray();
    count = 0;
    for (int i = 0; i < keys.numElements(); i++) add(keys.getUTF8String(i));
    byte[] block = block();
    count = 0;
    return block;
  }

  static UTF8String text(ArrayData array, int i) {
    return array.isNullAt(i) ? null : array.getUTF8String(i);
  }

  static int find(ArrayData names, UTF8String name) {
    return find(names, name, 0);
  }

  /** Where the name stands, or -1; looked for from `likely` on, and then before it. */
  static int find(ArrayData names, UTF8String name, int likely) {
    int n = names.numElements();
    for (int k = 0; k < n; k++) {
      int i = likely + k < n ? likely + k : (likely + k) % n;
      if (is(names, i, name)) return i;
    }
    return -1;
  }

  private static boolean is(ArrayData names, int i, UTF8String name) {
    if (!(names instanceof UnsafeArrayData)) return name.equals(names.getUTF8String(i));
    // The same without an object for each name that is looked at.
    UnsafeArrayData block = (UnsafeArrayData) names;
    long place = block.getLong(i);
    int size = (int) place;
    return size == name.numBytes() && !block.isNullAt(i) && ByteArrayMethods.arrayEquals(
        block.getBaseObject(), block.getBaseOffset() + (place >>> 32), name.getBaseObject(), name.getBaseOffset(), size);
  }
}
