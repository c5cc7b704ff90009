package io.changeglot.kernel;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.functions.AggregateFunction;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * fold(struct of order STRING, gone BOOLEAN, values MAP): what many steps of one row come to, whatever order they are
 * seen in. A step with gone true ends the row; any other sets the values that it has. The last step by `order` decides
 * whether the row is there, and for each name the last step that has it what its value is, back to where the row last
 * ended. Of steps with one order, the greater value decides. Memory is that of one row, however many the steps.
 *
 * <p>Gives STRUCT of order (the last), gone, since (the order in which the row last ended, NULL if it did not), values.
 */
public final class Fold implements AggregateFunction<Object[], InternalRow> {
  private static final DataType TEXT = DataTypes.StringType;
  private static final StructType RESULT = new StructType().add("order", TEXT).add("gone", DataTypes.BooleanType)
      .add("since", TEXT).add("values", DataTypes.createMapType(TEXT, TEXT, true));

  // The state is of Java's own classes: Spark reads it back with a loader that does not know ours. It holds bytes,
  // since Spark reuses the memory behind its strings.
  private static final int LAST = 0, ENDED = 1, VALUES = 2;

  private static byte[] bytes(Object[] state, int i) {
    return (byte[]) state[i];
  }

  @SuppressWarnings("unchecked")
  private static LinkedHashMap<String, byte[][]> values(Object[] state) {
    return (LinkedHashMap<String, byte[][]>) state[VALUES];
  }

  private final StructType takes;

  Fold(StructType takes) {
    this.takes = takes;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {takes};
  }

  @Override
  public DataType resultType() {
    return RESULT;
  }

  @Override
  public String name() {
    return "fold";
  }

  @Override
  public String canonicalName() {
    return "changeglot.fold" + Kernel.VERSION;
  }

  @Override
  public Object[] newAggregationState() {
    return new Object[] {null, null, new LinkedHashMap<String, byte[][]>()};
  }

  private static int compare(byte[] a, byte[] b) {
    if (a == null || b == null) return a == b ? 0 : a == null ? -1 : 1;
    return Arrays.compareUnsigned(a, b);
  }

  private static void set(Object[] state, String name, byte[] order, byte[] value) {
    byte[][] known = values(state).get(name);
    int newer = known == null ? 1 : compare(order, known[0]);
    if (newer > 0 || (newer == 0 && compare(value, known[1]) > 0)) values(state).put(name, new byte[][] {order, value});
  }

  @Override
  public Object[] update(Object[] state, InternalRow input) {
    InternalRow step = input.getStruct(0, 3);
    byte[] order = step.getUTF8String(0).getBytes();
    if (compare(order, bytes(state, LAST)) > 0) state[LAST] = order;
    if (step.getBoolean(1)) {
      if (compare(order, bytes(state, ENDED)) > 0) state[ENDED] = order;
    } else if (!step.isNullAt(2)) {
      MapData map = step.getMap(2);
      ArrayData names = map.keyArray(), values = map.valueArray();
      for (int i = 0; i < map.numElements(); i++) {
        set(state, names.getUTF8String(i).toString(), order, values.isNullAt(i) ? null : values.getUTF8String(i).getBytes());
      }
    }
    return state;
  }

  @Override
  public Object[] merge(Object[] left, Object[] right) {
    for (int i : new int[] {LAST, ENDED}) if (compare(bytes(right, i), bytes(left, i)) > 0) left[i] = right[i];
    for (Map.Entry<String, byte[][]> each : values(right).entrySet()) {
      set(left, each.getKey(), each.getValue()[0], each.getValue()[1]);
    }
    return left;
  }

  @Override
  public InternalRow produceResult(Object[] state) {
    byte[] last = bytes(state, LAST), ended = bytes(state, ENDED);
    // A row that ends and begins at one place in the order has ended: nothing came after.
    boolean gone = ended != null && compare(last, ended) <= 0;
    MapData values = null;
    if (!gone) {
      Object[] names = new Object[values(state).size()], texts = new Object[values(state).size()];
      int n = 0;
      for (Map.Entry<String, byte[][]> each : values(state).entrySet()) {
        if (compare(each.getValue()[0], ended) <= 0) continue;
        names[n] = UTF8String.fromString(each.getKey());
        byte[] text = each.getValue()[1];
        texts[n++] = text == null ? null : UTF8String.fromBytes(text);
      }
      values = new ArrayBasedMapData(
          new GenericArrayData(Arrays.copyOf(names, n)), new GenericArrayData(Arrays.copyOf(texts, n)));
    }
    return new GenericInternalRow(new Object[] {
        UTF8String.fromBytes(last), gone, ended == null ? null : UTF8String.fromBytes(ended), values});
  }
}
