package io.changeglot.kernel;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * What the steps of one row come to, whatever order they are given in: its last state, or all of its versions.
 *
 * <p>A step has an order (text that sorts), a kind, a time and values by name. END: the row is gone. PART: it has these
 * values, others stay. WHOLE: as PART, and they are all that it has. BEGIN: it has these values and no others.
 */
final class Steps {
  static final int END = 0, PART = 1, WHOLE = 2, BEGIN = 3;

  private static final DataType TEXT = DataTypes.StringType, TIME = DataTypes.TimestampType;
  private static final MapType TEXTS = DataTypes.createMapType(TEXT, TEXT, true);
  static final StructType STEP = new StructType().add("order", TEXT).add("kind", DataTypes.IntegerType)
      .add("at", TIME).add("values", TEXTS);
  static final ArrayType STEPS = DataTypes.createArrayType(STEP, true);
  static final StructType STATE = new StructType().add("order", TEXT).add("gone", DataTypes.BooleanType)
      .add("since", TEXT).add("whole", DataTypes.BooleanType).add("values", TEXTS).add("orders", TEXTS);
  static final StructType STORED = new StructType().add("start", TEXT).add("end", TEXT).add("end_at", TIME)
      .add("steps", STEPS).add("base", TEXTS);
  static final StructType VERSION = new StructType().add("start", TEXT).add("end", TEXT).add("start_at", TIME)
      .add("end_at", TIME).add("values", TEXTS).add("base", TEXTS).add("steps", STEPS);

  /** Of steps with one order the least rank counts. */
  private record Step(UTF8String order, int rank, int kind, Object at, MapData values) {
    static Step of(InternalRow row, int rank) {
      return new Step(row.getUTF8String(0), rank, row.getInt(1), row.isNullAt(2) ? null : row.getLong(2),
          row.isNullAt(3) ? null : row.getMap(3));
    }

    InternalRow row() {
      return new GenericInternalRow(new Object[] {order, kind, at, values});
    }
  }

  private record Told(UTF8String order, UTF8String value) {}

  private Steps() {}

  private static List<Step> read(ArrayData steps, int rank) {
    List<Step> found = new ArrayList<>(steps.numElements());
    for (int i = 0; i < steps.numElements(); i++) found.add(Step.of(steps.getStruct(i, 4), rank));
    return found;
  }

  /** In order, each order once: what has the same order is one change that came twice. */
  private static List<Step> sorted(List<Step> steps) {
    if (steps.size() < 2) return steps;
    steps.sort(Comparator.comparing(Step::order).thenComparingInt(Step::rank));
    List<Step> unique = new ArrayList<>(steps.size());
    for (Step step : steps) {
      if (unique.isEmpty() || !unique.get(unique.size() - 1).order.equals(step.order)) unique.add(step);
    }
    return unique;
  }

  private static void lay(MapData values, UTF8String order, Map<UTF8String, Told> state) {
    if (values == null) return;
    ArrayData names = values.keyArray(), texts = values.valueArray();
    for (int i = 0; i < values.numElements(); i++) {
      state.put(names.getUTF8String(i), new Told(order, texts.isNullAt(i) ? null : texts.getUTF8String(i)));
    }
  }

  private static MapData map(List<Object> names, List<Object> values) {
    return new ArrayBasedMapData(new GenericArrayData(names.toArray()), new GenericArrayData(values.toArray()));
  }

  private static MapData values(Map<UTF8String, Told> state) {
    List<Object> names = new ArrayList<>(state.size()), values = new ArrayList<>(state.size());
    state.forEach((name, told) -> {
      names.add(name);
      values.add(told.value);
    });
    return map(names, values);
  }

  /**
   * The last state. `since`: the order at which the row last ended or began, before which nothing counts; NULL if it
   * did neither. `whole`: the last step told all. `orders`: of the values that were told earlier than the last step,
   * when; NULL if there is none.
   */
  static InternalRow fold(ArrayData steps) {
    List<Step> all = sorted(read(steps, 0));
    Step last = all.get(all.size() - 1);
    Map<UTF8String, Told> state = new LinkedHashMap<>();
    UTF8String since = null;
    for (Step step : all) {
      if (step.kind == END || step.kind == BEGIN) {
        state.clear();
        since = step.order;
      }
      lay(step.values, step.order, state);
    }
    boolean gone = last.kind == END;
    List<Object> names = new ArrayList<>(), orders = new ArrayList<>();
    state.forEach((name, told) -> {
      if (!told.order.equals(last.order)) {
        names.add(name);
        orders.add(told.order);
      }
    });
    return new GenericInternalRow(new Object[] {
        last.order, gone, since, last.kind >= WHOLE, gone ? null : values(state),
        names.isEmpty() || gone ? null : map(names, orders)});
  }

  /**
   * The versions that are other than stored, once the steps are among those that made them. A step that leaves the
   * tracked values as they are belongs to the version that it found; without tracked names all are tracked.
   *
   * <p>A stored version has start, end, its time, the steps that made it, and `base`: the values after the first of
   * them, NULL if that step has them all. The version in which the first new step falls is taken for what it was; of
   * those after it each step counts alone. A version that there is no more is given without steps.
   */
  static ArrayData versions(ArrayData fresh, ArrayData stored, ArrayData tracked) {
    List<Step> steps = read(fresh, 0);
    UTF8String first = steps.get(0).order;
    for (Step step : steps) if (step.order.compareTo(first) < 0) first = step.order;
    Map<UTF8String, InternalRow> known = new LinkedHashMap<>();
    for (int i = 0; i < stored.numElements(); i++) {
      InternalRow version = stored.getStruct(i, STORED.length());
      UTF8String start = version.getUTF8String(0);
      known.put(start, version);
      List<Step> made = read(version.getArray(3), 1);
      if (start.compareTo(first) < 0 && !version.isNullAt(4)) {
        made.set(0, new Step(start, 1, BEGIN, made.get(0).at, version.getMap(4)));
      }
      steps.addAll(made);
      if (!version.isNullAt(1)) {
        steps.add(new Step(version.getUTF8String(1), 2, END, version.isNullAt(2) ? null : version.getLong(2), null));
      }
    }
    List<Object> changed = new ArrayList<>();
    for (Version version : rebuilt(sorted(steps), tracked)) {
      InternalRow before = known.remove(version.first.order);
      if (before == null || !version.is(before)) changed.add(version.row(before));
    }
    for (UTF8String start : known.keySet()) {
      changed.add(new GenericInternalRow(new Object[] {start, null, null, null, null, null, null}));
    }
    return new GenericArrayData(changed.toArray());
  }

  private static List<Version> rebuilt(List<Step> steps, ArrayData tracked) {
    List<Version> found = new ArrayList<>();
    Map<UTF8String, Told> state = new LinkedHashMap<>();
    Version open = null;
    for (Step step : steps) {
      if (step.kind == END) {
        if (open != null) open.end(step, state);
        open = null;
        state.clear();
        continue;
      }
      Map<UTF8String, Told> before = new LinkedHashMap<>(state);
      if (step.kind == BEGIN) state.clear();
      lay(step.values, step.order, state);
      if (open != null && same(before, state, tracked)) {
        open.steps.add(step);
        continue;
      }
      if (open != null) open.end(step, before);
      open = new Version(step, step.kind == BEGIN ? null : values(state));
      found.add(open);
    }
    if (open != null) open.end(null, state);
    return found;
  }

  private static final class Version {
    final Step first;
    final MapData base;
    final List<Step> steps = new ArrayList<>();
    Step end;
    MapData values;

    Version(Step first, MapData base) {
      this.first = first;
      this.base = base;
      steps.add(first);
    }

    void end(Step by, Map<UTF8String, Told> state) {
      end = by;
      values = values(state);
    }

    /** Is it as it is stored? The steps of one order are the same step. */
    boolean is(InternalRow stored) {
      if (end == null ? !stored.isNullAt(1) : stored.isNullAt(1) || !end.order.equals(stored.getUTF8String(1))) {
        return false;
      }
      ArrayData made = stored.getArray(3);
      if (made.numElements() != steps.size()) return false;
      for (int i = 0; i < steps.size(); i++) {
        if (!made.getStruct(i, 4).getUTF8String(0).equals(steps.get(i).order)) return false;
      }
      if (first.kind == BEGIN && made.getStruct(0, 4).getInt(1) != BEGIN) return true;
      return stored.isNullAt(4) ? base == null : base != null && read(base).equals(read(stored.getMap(4)));
    }

    /** With the first step as it is stored, which may have been taken for the whole of what the row was. */
    InternalRow row(InternalRow stored) {
      List<Object> made = new ArrayList<>(steps.size());
      for (Step step : steps) made.add(step.row());
      MapData whole = base;
      if (stored != null && first.rank == 1) {
        made.set(0, stored.getArray(3).getStruct(0, 4));
        if (base == null && !stored.isNullAt(4)) whole = stored.getMap(4);
      }
      return new GenericInternalRow(new Object[] {first.order, end == null ? null : end.order, first.at,
          end == null ? null : end.at, values, whole, new GenericArrayData(made.toArray())});
    }
  }

  private static Map<UTF8String, UTF8String> read(MapData map) {
    Map<UTF8String, UTF8String> found = new LinkedHashMap<>();
    for (int i = 0; i < map.numElements(); i++) {
      UTF8String value = map.valueArray().isNullAt(i) ? null : map.valueArray().getUTF8String(i);
      found.put(map.keyArray().getUTF8String(i), value);
    }
    return found;
  }

  private static boolean same(Map<UTF8String, Told> a, Map<UTF8String, Told> b, ArrayData tracked) {
    if (tracked == null) {
      if (!a.keySet().equals(b.keySet())) return false;
      for (UTF8String name : a.keySet()) if (!same(a.get(name), b.get(name))) return false;
      return true;
    }
    for (int i = 0; i < tracked.numElements(); i++) {
      UTF8String name = tracked.getUTF8String(i);
      if (!same(a.get(name), b.get(name))) return false;
    }
    return true;
  }

  private static boolean same(Told a, Told b) {
    return a == null || b == null ? a == b : Objects.equals(a.value, b.value);
  }
}
