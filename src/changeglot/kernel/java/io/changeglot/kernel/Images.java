package io.changeglot.kernel;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** What is done to row images and to lists of columns, by one thread. */
final class Images {
  private static final int PLANS = 256;

  private final Image out = new Image();
  private byte[] kinds = new byte[32];

  /** What to do with each value of the images that have these names and columns. */
  private static final class Plan {
    Mark names, columns;
    Spelling[] spellings;
    boolean changes;
  }

  private final Plan[] plans = new Plan[PLANS];
  private int planCount;
  private HashMap<String, String> rules;

  /**
   * What to know a list by: a copy of its bytes; a list that is no bytes of Spark's is a constant, and itself. `seen` is
   * the object that was last found to be the same: what a memo gave comes again as the same object.
   */
  static final class Mark {
    final byte[] bytes;
    ArrayData seen;

    Mark(ArrayData list) {
      bytes = list instanceof UnsafeArrayData ? Images.bytes((UnsafeArrayData) list) : null;
      seen = list;
    }

    boolean is(ArrayData list) {
      if (list == seen) return true;
      if (bytes == null || !(list instanceof UnsafeArrayData) || !equal((UnsafeArrayData) list)) return false;
      seen = list;
      return true;
    }

    private boolean equal(UnsafeArrayData list) {
      if (list.getSizeInBytes() != bytes.length) return false;
      Object base = list.getBaseObject();
      if (!(base instanceof byte[])) return Arrays.equals(Images.bytes(list), bytes);
      int from = (int) (list.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
      return Arrays.equals((byte[]) base, from, from + bytes.length, bytes, 0, bytes.length);
    }
  }

  private static byte[] bytes(UnsafeArrayData list) {
    byte[] copy = new byte[list.getSizeInBytes()];
    Platform.copyMemory(list.getBaseObject(), list.getBaseOffset(), copy, Platform.BYTE_ARRAY_OFFSET, copy.length);
    return copy;
  }

  private Plan plan(ArrayData names, ArrayData columns, UTF8String table) {
    for (int i = 0; i < planCount; i++) {
      Plan p = plans[i];
      if (p.columns.is(columns) && p.names.is(names)) {
        if (i > 0) {
          plans[i] = plans[i - 1];
          plans[i - 1] = p;
        }
        return p;
      }
    }
    if (rules == null) rules = table(table);
    Plan p = new Plan();
    p.spellings = new Spelling[names.numElements()];
    for (int i = 0; i < p.spellings.length; i++) {
      UTF8String name = names.getUTF8String(i);
      for (int c = 0; c < columns.numElements(); c++) {
        InternalRow column = columns.getStruct(c, COLUMN_FIELDS);
        if (column.isNullAt(0) || !name.equals(column.getUTF8String(0))) continue;
        String type = column.isNullAt(1) ? null : column.getUTF8String(1).toString();
        String rule = look(rules, column);
        if (rule != null) {
          p.spellings[i] = new Spelling(rule, type == null ? "" : type);
          p.changes |= p.spellings[i].reads();
        }
        break;
      }
    }
    p.names = new Mark(names);
    p.columns = new Mark(columns);
    int i = planCount < PLANS ? planCount++ : PLANS - 1;
    plans[i] = p;
    return p;
  }

  static final int COLUMN_FIELDS = 5;

  /** A table comes as text, a line for each word: the word, a tab, what it means. */
  private static HashMap<String, String> table(UTF8String text) {
    HashMap<String, String> out = new HashMap<>();
    text.toString().lines().map(line -> line.split("\t", 2)).forEach(pair -> out.put(pair[0], pair[1]));
    return out;
  }

  /** What the table says of a column: by its type, else by its JDBC code (`jdbc -5`), else by JSON kind (`json string`). */
  private static String look(HashMap<String, String> table, InternalRow column) {
    if (!column.isNullAt(1)) {
      String word = word(column.getUTF8String(1).toString()), found = table.get(word);
      if (word.endsWith("[]")) return null;
      return found != null ? found : table.get(word.split(" ")[0]);
    }
    if (!column.isNullAt(2)) return table.get("jdbc " + column.getInt(2));
    return column.isNullAt(4) ? null : table.get("json " + column.getUTF8String(4));
  }

  /** `BIGINT(20) UNSIGNED` is looked up as `bigint unsigned`, then as `bigint`. */
  static String word(String type) {
    StringBuilder s = new StringBuilder();
    int open = 0;
    for (int i = 0; i < type.length(); i++) {
      char c = type.charAt(i);
      if (c == '(') open++;
      else if (c == ')') open--;
      else if (open <= 0) s.append(c);
    }
    return s.toString().toLowerCase(Locale.ROOT).trim().replaceAll("\\s+", " ");
  }

  private void kind(int i, char kind) {
    if (i >= kinds.length) kinds = Arrays.copyOf(kinds, 2 * i);
    kinds[i] = (byte) kind;
  }

  /** STRUCT of values and problem: an image as it was read, in canonical text. */
  InternalRow canonical(InternalRow image, ArrayData columns, UTF8String table) {
    if (image == null) return null;
    MapData values = image.getMap(0);
    if (columns == null || columns.numElements() == 0) return new GenericInternalRow(new Object[] {values, null});
    ArrayData names = values.keyArray();
    Plan p = plan(names, columns, table);
    if (!p.changes) return new GenericInternalRow(new Object[] {values, null});
    UTF8String letters = image.getUTF8String(1);
    ArrayData texts = values.valueArray();
    boolean changed = false;
    byte[] block = out.namesOf(values);
    out.begin();
    for (int i = 0; i < p.spellings.length; i++) {
      UTF8String text = Image.text(texts, i), read = text;
      Spelling spelling = p.spellings[i];
      if (text != null && spelling != null && spelling.reads()) {
        try {
          read = spelling.read(text, (char) letters.getByte(i));
        } catch (Scanner.Bad e) {
          UTF8String problem = UTF8String.fromString(e.in(names.getUTF8String(i).toString()).getMessage());
          return new GenericInternalRow(new Object[] {null, problem});
        }
      }
      changed |= read != text;
      out.add(read);
    }
    if (!changed) return new GenericInternalRow(new Object[] {values, null});
    out.useNames(block);
    return new GenericInternalRow(new Object[] {out.map(), null});
  }

  /** An image of canonical values as it is to be written: STRUCT of values and kinds. */
  InternalRow spelled(MapData values, ArrayData columns, UTF8String table) {
    if (values == null) return null;
    ArrayData names = values.keyArray(), texts = values.valueArray();
    int n = names.numElements();
    Spelling[] spellings = columns == null ? null : plan(names, columns, table).spellings;
    byte[] block = out.namesOf(values);
    out.begin();
    for (int i = 0; i < n; i++) {
      UTF8String text = Image.text(texts, i);
      if (text == null) {
        out.add(null, 0, 0);
        kind(i, 'z');
      } else if (spellings == null || spellings[i] == null) {
        out.add(text);
        kind(i, 's');
      } else {
        kind(i, spellings[i].write(text, out));
      }
    }
    out.useNames(block);
    return new GenericInternalRow(new Object[] {out.map(), UTF8String.fromBytes(Arrays.copyOf(kinds, n))});
  }

  /** `base` with the values of `over` laid on it by name; with their kinds if both have them. */
  Object overlay(MapData base, UTF8String baseKinds, MapData over, UTF8String overKinds) {
    ArrayData names = base.keyArray(), values = base.valueArray(), top = over.keyArray(), topValues = over.valueArray();
    int n = names.numElements(), m = top.numElements();
    int[] from = new int[n];
    int fresh = 0;
    boolean[] used = new boolean[m];
    for (int j = 0, last = -1; j < m; j++) {
      int i = Image.find(names, top.getUTF8String(j), last + 1);
      if (i >= 0) {
        last = i;
        from[i] = j + 1;
        used[j] = true;
      } else {
        fresh++;
      }
    }
    out.begin();
    if (fresh > 0) {
      for (int i = 0; i < n; i++) out.add(names, i);
      for (int j = 0; j < m; j++) if (!used[j]) out.add(top, j);
      out.beginValues();
    }
    for (int i = 0; i < n; i++) {
      int j = from[i] - 1;
      if (j < 0) out.add(values, i);
      else out.add(topValues, j);
      if (baseKinds != null) kind(i, (char) (j < 0 ? baseKinds.getByte(i) : overKinds.getByte(j)));
    }
    for (int j = 0, i = n; j < m; j++) {
      if (used[j]) continue;
      out.add(topValues, j);
      if (baseKinds != null) kind(i++, (char) overKinds.getByte(j));
    }
    if (fresh == 0) out.useNamesOf(base);
    if (baseKinds == null) return out.map();
    return new GenericInternalRow(new Object[] {out.map(), UTF8String.fromBytes(Arrays.copyOf(kinds, n + fresh))});
  }

  /** The named entries, of `first` where it has them, else of `second`; NULL if a name is in neither. */
  MapData pick(MapData first, MapData second, ArrayData wanted) {
    if (wanted == null || wanted.numElements() == 0 || (first == null && second == null)) return null;
    int n = wanted.numElements();
    out.begin();
    UTF8String[] values = new UTF8String[n];
    for (int i = 0; i < n; i++) {
      if (wanted.isNullAt(i)) return null;
      UTF8String name = wanted.getUTF8String(i);
      int at = first == null ? -1 : Image.find(first.keyArray(), name, i);
      MapData in = first;
      if (at < 0 && second != null) {
        at = Image.find(second.keyArray(), name, i);
        in = second;
      }
      if (at < 0) return null;
      for (int j = 0; j < i; j++) if (name.equals(wanted.getUTF8String(j))) return null;
      values[i] = Image.text(in.valueArray(), at);
      out.add(name);
    }
    out.beginValues();
    for (UTF8String value : values) out.add(value);
    return out.map();
  }

  boolean covers(MapData image, MapData other) {
    if (image == null || other == null) return image != null;
    ArrayData names = image.keyArray(), needed = other.keyArray();
    for (int i = 0, n = needed.numElements(), at = -1; i < n; i++) {
      at = Image.find(names, needed.getUTF8String(i), at + 1);
      if (at < 0) return false;
    }
    return true;
  }

  /** The entries of `other` that `base` has not, or has with another value. */
  MapData differ(MapData base, MapData other) {
    if (other == null || base == null) return other;
    ArrayData names = other.keyArray(), values = other.valueArray(), baseNames = base.keyArray(), baseValues = base.valueArray();
    int n = names.numElements(), m = 0;
    int[] kept = new int[n];
    for (int i = 0; i < n; i++) {
      UTF8String name = names.getUTF8String(i);
      int at = Image.find(baseNames, name, i);
      if (at >= 0) {
        UTF8String a = Image.text(values, i), b = Image.text(baseValues, at);
        if (a == null ? b == null : a.equals(b)) continue;
      }
      kept[m++] = i;
    }
    out.begin();
    for (int i = 0; i < m; i++) out.add(names.getUTF8String(kept[i]));
    out.beginValues();
    for (int i = 0; i < m; i++) out.add(Image.text(values, kept[i]));
    return out.map();
  }

  /** The names with the values; NULL if they are not as many, or a name comes twice. */
  MapData zip(ArrayData names, ArrayData values) {
    if (names == null || values == null || names.numElements() != values.numElements()) return null;
    out.begin();
    for (int i = 0; i < names.numElements(); i++) {
      if (names.isNullAt(i)) return null;
      for (int j = 0; j < i; j++) if (names.getUTF8String(i).equals(names.getUTF8String(j))) return null;
      out.add(names.getUTF8String(i));
    }
    out.beginValues();
    for (int i = 0; i < values.numElements(); i++) out.add(Image.text(values, i));
    return out.map();
  }

  /** The values with each text that is not NULL under its name; NULL if there are none at all. */
  MapData note(MapData values, ArrayData names, ArrayData texts) {
    if (values == null && noted(names, texts)) return notes;
    int n = names.numElements(), m = values == null ? 0 : values.numElements(), fresh = 0, noted = 0;
    int[] over = new int[m], added = new int[n];
    for (int i = 0; i < n; i++) {
      if (texts.isNullAt(i)) continue;
      noted++;
      int at = m == 0 ? -1 : Image.find(values.keyArray(), names.getUTF8String(i));
      if (at < 0) added[fresh++] = i;
      else over[at] = i + 1;
    }
    if (noted == 0) return values;
    out.begin();
    for (int i = 0; i < m; i++) out.add(values.keyArray().getUTF8String(i));
    for (int i = 0; i < fresh; i++) out.add(names.getUTF8String(added[i]));
    out.beginValues();
    for (int i = 0; i < m; i++) out.add(over[i] > 0 ? texts.getUTF8String(over[i] - 1) : Image.text(values.valueArray(), i));
    for (int i = 0; i < fresh; i++) out.add(texts.getUTF8String(added[i]));
    MapData result = out.map();
    if (values == null) {
      notes = result;
      noteNames = names;
      noteTexts = new UTF8String[n];
      for (int i = 0; i < n; i++) if (!texts.isNullAt(i)) noteTexts[i] = texts.getUTF8String(i).copy();
    }
    return result;
  }

  /** The last notes that were laid on nothing: most messages of a topic have the same. */
  private MapData notes;
  private ArrayData noteNames;
  private UTF8String[] noteTexts;

  private boolean noted(ArrayData names, ArrayData texts) {
    if (notes == null || names != noteNames) return false;
    for (int i = 0; i < noteTexts.length; i++) {
      if (texts.isNullAt(i) ? noteTexts[i] != null : !texts.getUTF8String(i).equals(noteTexts[i])) return false;
    }
    return true;
  }

  /** The values whose names begin with one of the prefixes; NULL if none does. */
  MapData prefixed(MapData values, ArrayData prefixes) {
    if (values == null) return null;
    ArrayData names = values.keyArray(), texts = values.valueArray();
    int n = names.numElements(), m = 0;
    int[] kept = new int[n];
    for (int i = 0; i < n; i++) {
      UTF8String name = names.getUTF8String(i);
      for (int p = 0; p < prefixes.numElements(); p++) {
        if (name.startsWith(prefixes.getUTF8String(p))) {
          kept[m++] = i;
          break;
        }
      }
    }
    if (m == 0 || m == n) return m == 0 ? null : values;
    out.begin();
    for (int i = 0; i < m; i++) out.add(names.getUTF8String(kept[i]));
    out.beginValues();
    for (int i = 0; i < m; i++) out.add(Image.text(texts, kept[i]));
    return out.map();
  }

  // Columns

  /** What two lists became. */
  private static final class Known {
    Mark first, second;
    ArrayData result;
  }

  private final Known[] known = new Known[PLANS];
  private int knownCount;
  private UnsafeProjection compact;

  private ArrayData find(ArrayData first, ArrayData second) {
    for (int i = 0; i < knownCount; i++) {
      Known k = known[i];
      if (k.first.is(first) && k.second.is(second)) {
        if (i > 0) {
          known[i] = known[i - 1];
          known[i - 1] = k;
        }
        return k.result;
      }
    }
    return null;
  }

  private ArrayData keep(ArrayData first, ArrayData second, Object[] columns, DataType type) {
    Known k = new Known();
    k.first = new Mark(first);
    k.second = new Mark(second);
    k.result = columns(columns, type);
    known[knownCount < PLANS ? knownCount++ : PLANS - 1] = k;
    return k.result;
  }

  private ArrayData columns(Object[] columns, DataType type) {
    if (compact == null) compact = UnsafeProjection.create(new DataType[] {type});
    return compact.apply(new GenericInternalRow(new Object[] {new GenericArrayData(columns)})).getArray(0).copy();
  }

  private static Object[] facts(InternalRow column) {
    Object[] row = new Object[COLUMN_FIELDS];
    row[0] = column.getUTF8String(0).copy();
    if (!column.isNullAt(1)) row[1] = column.getUTF8String(1).copy();
    if (!column.isNullAt(2)) row[2] = column.getInt(2);
    if (!column.isNullAt(3)) row[3] = column.getBoolean(3);
    if (!column.isNullAt(4)) row[4] = column.getUTF8String(4).copy();
    return row;
  }

  private static boolean nameless(ArrayData columns, int i) {
    return columns.isNullAt(i) || columns.getStruct(i, COLUMN_FIELDS).isNullAt(0);
  }

  /** The columns of both by name, each fact from the first that knows it; a JSON kind only where there is no type. */
  ArrayData merge(ArrayData first, ArrayData second, DataType type) {
    if (first == null || second == null) return first == null ? second : first;
    ArrayData result = find(first, second);
    if (result != null) return result;
    var rows = new java.util.LinkedHashMap<Object, Object[]>();
    for (ArrayData side : new ArrayData[] {first, second}) {
      for (int i = 0; i < side.numElements(); i++) {
        if (nameless(side, i)) continue;
        Object[] facts = facts(side.getStruct(i, COLUMN_FIELDS));
        Object[] row = rows.putIfAbsent(facts[0], facts);
        for (int f = 1; row != null && f < COLUMN_FIELDS; f++) if (row[f] == null) row[f] = facts[f];
      }
    }
    for (Object[] row : rows.values()) if (row[1] != null || row[2] != null) row[4] = null;
    return keep(first, second, rows.values().stream().map(GenericInternalRow::new).toArray(), type);
  }

  private HashMap<String, String> codes;

  /**
   * The columns with the types that the first table gives them (`*` stands for any other), the JDBC codes of the second where they have none, and
   * nullable unless they are among the keys, where that is not known.
   */
  ArrayData typed(ArrayData columns, UTF8String types, UTF8String jdbc, ArrayData keys, DataType type) {
    if (columns == null) return null;
    ArrayData result = find(columns, keys);
    if (result != null) return result;
    if (rules == null) rules = table(types);
    if (codes == null) codes = table(jdbc);
    var rows = new java.util.ArrayList<Object>();
    for (int i = 0; i < columns.numElements(); i++) {
      if (nameless(columns, i)) continue;
      InternalRow column = columns.getStruct(i, COLUMN_FIELDS);
      Object[] row = facts(column);
      String code = look(codes, column), word = look(rules, column);
      if (row[2] == null && code != null) row[2] = Integer.valueOf(code);
      if (word == null) word = rules.get("*");
      if (word != null) row[1] = UTF8String.fromString(word);
      if (row[1] != null) row[4] = null;
      if (row[3] == null && keys != null) row[3] = Image.find(keys, (UTF8String) row[0]) < 0;
      rows.add(new GenericInternalRow(row));
    }
    return keep(columns, keys, rows.toArray(), type);
  }

  /** The named columns, in the order of the names; one that is not there is left out. */
  ArrayData only(ArrayData columns, ArrayData names, DataType type) {
    if (columns == null || names == null) return null;
    ArrayData result = find(columns, names);
    if (result != null) return result;
    var rows = new java.util.ArrayList<Object>();
    for (int n = 0; n < names.numElements(); n++) {
      for (int i = 0; i < columns.numElements(); i++) {
        if (nameless(columns, i)) continue;
        Object[] row = facts(columns.getStruct(i, COLUMN_FIELDS));
        if (row[0].equals(names.getUTF8String(n))) rows.add(new GenericInternalRow(row));
      }
    }
    return keep(columns, names, rows.toArray(), type);
  }

  private static final String[] FACTS = {"name", "type", "jdbc", "nullable", "json"};

  /** The columns with the named facts alone; `type!` leaves out the columns that have no type. */
  ArrayData facts(ArrayData columns, ArrayData wanted, DataType type) {
    if (columns == null) return null;
    ArrayData result = find(columns, wanted);
    if (result != null) return result;
    boolean[] keeps = new boolean[COLUMN_FIELDS], needs = new boolean[COLUMN_FIELDS];
    for (int i = 0; i < wanted.numElements(); i++) {
      String fact = wanted.getUTF8String(i).toString();
      int at = Arrays.asList(FACTS).indexOf(fact.replace("!", ""));
      keeps[at] = true;
      needs[at] = fact.endsWith("!");
    }
    var rows = new java.util.ArrayList<Object>();
    for (int i = 0; i < columns.numElements(); i++) {
      if (nameless(columns, i)) continue;
      Object[] row = facts(columns.getStruct(i, COLUMN_FIELDS));
      boolean whole = true;
      for (int f = 1; f < COLUMN_FIELDS; f++) {
        whole &= !needs[f] || row[f] != null;
        if (!keeps[f]) row[f] = null;
      }
      if (whole) rows.add(new GenericInternalRow(row));
    }
    return keep(columns, wanted, rows.toArray(), type);
  }

  /** The columns of one or two images that came without types: names, and the JSON kinds of their values. */
  ArrayData inferred(InternalRow first, InternalRow second, DataType type) {
    ArrayData a = inferred(first, type);
    return tells(first, second) ? a : merge(a, inferred(second, type), type);
  }

  /** The columns, with what one or two images tell of those that have no type. */
  ArrayData completed(ArrayData columns, InternalRow first, InternalRow second, DataType type) {
    if (declares(columns, first, second) || declares(columns, second, first)) return columns;
    return merge(columns, inferred(first, second, type), type);
  }

  /** Lists of columns, as they are kept, and the names that each was last seen to declare. */
  private static final int LISTS = 16;
  private final ArrayData[] declaring = new ArrayData[LISTS];
  private final Mark[] declared = new Mark[LISTS];
  private int nextDeclaring;

  /** True if the columns are those of the image, in its order, all have types, and the other image has no more. */
  private boolean declares(ArrayData columns, InternalRow image, InternalRow other) {
    if (columns == null || image == null) return false;
    ArrayData names = image.getMap(0).keyArray();
    int at = 0;
    while (at < LISTS && declaring[at] != columns) at++;
    if (at == LISTS || !declared[at].is(names)) {
      if (!declares(columns, names)) return false;
      if (at == LISTS) at = nextDeclaring = (nextDeclaring + 1) % LISTS;
      declaring[at] = columns;
      declared[at] = new Mark(names);
    }
    return other == null || covers(image.getMap(0), other.getMap(0));
  }

  private static boolean declares(ArrayData columns, ArrayData names) {
    int n = columns.numElements();
    if (names.numElements() != n) return false;
    for (int i = 0; i < n; i++) {
      if (columns.isNullAt(i)) return false;
      InternalRow column = columns.getStruct(i, COLUMN_FIELDS);
      if (column.isNullAt(0) || (column.isNullAt(1) && column.isNullAt(2)) || !column.isNullAt(4)) return false;
      if (!column.getUTF8String(0).equals(names.getUTF8String(i))) return false;
    }
    return true;
  }

  /** True if the first image has a value under every name of the second: it then tells all of its kinds. */
  private boolean tells(InternalRow first, InternalRow second) {
    if (first == null || second == null) return second == null;
    UTF8String letters = first.getUTF8String(1);
    for (int i = 0, n = letters.numBytes(); i < n; i++) if (letters.getByte(i) == 'z') return false;
    return covers(first.getMap(0), second.getMap(0));
  }

  private final Memo kindsMemo = new Memo();
  private byte[] signature = new byte[256];

  private ArrayData inferred(InternalRow image, DataType type) {
    if (image == null) return null;
    ArrayData names = image.getMap(0).keyArray();
    UTF8String letters = image.getUTF8String(1);
    byte[] block = names instanceof UnsafeArrayData ? bytes((UnsafeArrayData) names) : null;
    int n = letters.numBytes();
    if (block != null) {
      if (signature.length < block.length + n) signature = new byte[2 * (block.length + n)];
      System.arraycopy(block, 0, signature, 0, block.length);
      for (int i = 0; i < n; i++) signature[block.length + i] = letters.getByte(i);
      Object known = kindsMemo.find(signature, 0, block.length + n);
      if (known != null && kindsMemo.length == block.length + n) return (ArrayData) known;
    }
    Object[] all = new Object[n];
    for (int i = 0; i < n; i++) {
      UTF8String kind = Reader.kind((char) letters.getByte(i));
      all[i] = new GenericInternalRow(new Object[] {names.getUTF8String(i), null, null, null, kind});
    }
    ArrayData result = columns(all, type);
    if (block != null) kindsMemo.keep(Arrays.copyOf(signature, block.length + n), result);
    return result;
  }
}
