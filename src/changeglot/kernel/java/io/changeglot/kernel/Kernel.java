package io.changeglot.kernel;

import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Exact JSON, and text in row images, as functions of a Spark catalog. Knows no message format: what is in a message,
 * and what it means, is said by the types and tables that are passed.
 */
public final class Kernel implements FunctionCatalog {
  /** Raised by one whenever the functions change what they take or give. */
  public static final int VERSION = 1;

  private static final DataType TEXT = DataTypes.StringType;
  private static final MapType TEXTS = DataTypes.createMapType(TEXT, TEXT, true);
  private static final StructType COLUMN = new StructType().add("name", TEXT).add("type", TEXT)
      .add("jdbc", DataTypes.IntegerType).add("nullable", DataTypes.BooleanType).add("json", TEXT);
  private static final ArrayType COLUMNS = DataTypes.createArrayType(COLUMN, true);
  private static final StructType CANONICAL = new StructType().add("values", TEXTS).add("problem", TEXT);

  private static final Map<String, Function<StructType, BoundFunction>> FUNCTIONS = new TreeMap<>(Map.ofEntries(
      Map.entry("read", Read::new),
      Map.entry("write", Write::new),
      Map.entry("quote", Quote::new),
      Map.entry("murmur2", Murmur2::new),
      Map.entry("sortable", Sortable::new),
      Map.entry("canonical", Canonical::new),
      Map.entry("spelled", Spelled::new),
      Map.entry("overlay", t -> isMap(t) ? new OverlayValues(t) : new OverlayImage(t)),
      Map.entry("pick", Pick::new),
      Map.entry("differ", Differ::new),
      Map.entry("covers", Covers::new),
      Map.entry("zip", Zip::new),
      Map.entry("fields", FieldsOf::new),
      Map.entry("note", Note::new),
      Map.entry("leading", Leading::new),
      Map.entry("merge", Merge::new),
      Map.entry("typed", Typed::new),
      Map.entry("only", Only::new),
      Map.entry("facts", Facts::new),
      Map.entry("listed", Listed::new),
      Map.entry("prefixed", Prefixed::new),
      Map.entry("joined", Joined::new),
      Map.entry("unlike", Unlike::new),
      Map.entry("completed", Completed::new),
      Map.entry("fold", Fold::new),
      Map.entry("versions", Versions::new)));

  private static boolean isMap(StructType arguments) {
    for (StructField f : arguments.fields()) if (f.dataType() instanceof MapType) return true;
    return false;
  }

  private String name;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return FUNCTIONS.keySet().stream().map(f -> Identifier.of(new String[0], f)).toArray(Identifier[]::new);
  }

  @Override
  public UnboundFunction loadFunction(Identifier id) throws NoSuchFunctionException {
    Function<StructType, BoundFunction> make = FUNCTIONS.get(id.name());
    if (make == null) throw new NoSuchFunctionException(id);
    return new UnboundFunction() {
      @Override
      public BoundFunction bind(StructType types) {
        return make.apply((StructType) types.fields()[0].dataType());
      }

      @Override
      public String name() {
        return id.name();
      }

      @Override
      public String description() {
        return id.name() + ": see the class that bears its name in io.changeglot.kernel";
      }
    };
  }

  /**
   * A function with working state S, one for each thread: nothing that a task remembers is seen by another.
   *
   * <p>All functions take their arguments as one struct. Spark's generated code calls a function with whatever stands in
   * the variable of an argument that is NULL, which may be the last row's value; in a struct, NULL is NULL.
   */
  abstract static class Bound<R, S> implements ScalarFunction<R> {
    private final StructType takes;
    private final DataType gives;
    private transient ThreadLocal<S> states;
    /** Of the thread that asked last. In one object: a thread that sees it sees whose it is. */
    private transient Held<S> held;

    Bound(DataType gives, StructType takes) {
      this.gives = gives;
      this.takes = takes;
    }

    /** The state of a thread; null of a function that needs none. */
    S fresh() {
      return null;
    }

    private record Held<S>(Thread by, S state) {}

    final S state() {
      Held<S> last = held;
      if (last != null && last.by == Thread.currentThread()) return last.state;
      ThreadLocal<S> known = states;
      if (known == null) states = known = ThreadLocal.withInitial((Supplier<S>) this::fresh);
      held = last = new Held<>(Thread.currentThread(), known.get());
      return last.state;
    }

    static InternalRow row(InternalRow arguments, int i, int fields) {
      return arguments.isNullAt(i) ? null : arguments.getStruct(i, fields);
    }

    static MapData map(InternalRow arguments, int i) {
      return arguments.isNullAt(i) ? null : arguments.getMap(i);
    }

    static ArrayData array(InternalRow arguments, int i) {
      return arguments.isNullAt(i) ? null : arguments.getArray(i);
    }

    @Override
    public DataType[] inputTypes() {
      return new DataType[] {takes};
    }

    @Override
    public DataType resultType() {
      return gives;
    }

    @Override
    public String name() {
      return getClass().getSimpleName().toLowerCase(java.util.Locale.ROOT);
    }

    @Override
    public String canonicalName() {
      return "changeglot." + name() + VERSION + takes.sql();
    }
  }

  abstract static class OfImages<R> extends Bound<R, Images> {
    OfImages(DataType gives, StructType takes) {
      super(gives, takes);
    }

    @Override
    Images fresh() {
      return new Images();
    }
  }

  /** read(message BINARY, shape STRUCT): STRUCT of problem and the shape's fields; only the shape's type counts. */
  public static final class Read extends Bound<InternalRow, Reader> {
    private final StructType shape;

    Read(StructType types) {
      super(withProblem((StructType) types.fields()[1].dataType()), types);
      shape = (StructType) types.fields()[1].dataType();
    }

    private static StructType withProblem(StructType shape) {
      StructType out = new StructType().add("problem", TEXT);
      for (StructField f : ((StructType) Shape.result(shape)).fields()) out = out.add(f);
      return out;
    }

    @Override
    Reader fresh() {
      return new Reader(shape);
    }

    public InternalRow invoke(InternalRow a) {
      return a.isNullAt(0) ? null : state().read(a.getBinary(0));
    }
  }

  /** write(value STRUCT): BINARY, the value as JSON. */
  public static final class Write extends Bound<byte[], Writer> {
    private final StructType type;

    Write(StructType types) {
      super(DataTypes.BinaryType, types);
      type = (StructType) types.fields()[0].dataType();
    }

    @Override
    Writer fresh() {
      return new Writer(type);
    }

    public byte[] invoke(InternalRow a) {
      return a.isNullAt(0) ? null : state().write(a.getStruct(0, type.length()));
    }
  }

  /** quote(text STRING): BINARY, the text as a JSON string. */
  public static final class Quote extends Bound<byte[], Writer> {
    Quote(StructType types) {
      super(DataTypes.BinaryType, types);
    }

    @Override
    Writer fresh() {
      return new Writer(TEXT);
    }

    public byte[] invoke(InternalRow a) {
      return a.isNullAt(0) ? null : state().write(a.getUTF8String(0));
    }
  }

  /** sortable(numbers): whole numbers, none negative, as text that sorts as they do, one after the other. */
  public static final class Sortable extends Bound<UTF8String, Void> {
    Sortable(StructType types) {
      super(DataTypes.StringType, types);
    }

    public UTF8String invoke(InternalRow a) {
      if (a.isNullAt(0)) return null;
      ArrayData numbers = a.getArray(0);
      StringBuilder text = new StringBuilder();
      for (int i = 0; i < numbers.numElements(); i++) {
        if (numbers.isNullAt(i)) continue;
        String digits = numbers.getDecimal(i, 20, 0).toString();
        // How long it is comes first, as a letter. A dot sorts before all of them.
        if (text.length() > 0) text.append('.');
        text.append((char) ('@' + digits.length())).append(digits);
      }
      return UTF8String.fromString(text.toString());
    }
  }

  /** murmur2(bytes): the hash, 32 bits, by which clients of Kafka choose a partition. Spark has only its successor. */
  public static final class Murmur2 extends Bound<Integer, Void> {
    private static final int SEED = 0x9747b28c;
    private static final int MIX = 0x5bd1e995;

    Murmur2(StructType types) {
      super(DataTypes.IntegerType, types);
    }

    public Integer invoke(InternalRow a) {
      return a.isNullAt(0) ? null : hash(a.getBinary(0));
    }

    private static int hash(byte[] bytes) {
      int whole = bytes.length & ~3;
      int hash = SEED ^ bytes.length;
      for (int i = 0; i < whole; i += 4) {
        int word = (bytes[i] & 255) | (bytes[i + 1] & 255) << 8 | (bytes[i + 2] & 255) << 16 | bytes[i + 3] << 24;
        word *= MIX;
        word = (word ^ word >>> 24) * MIX;
        hash = hash * MIX ^ word;
      }
      if (whole < bytes.length) {
        int rest = 0;
        for (int i = bytes.length - 1; i >= whole; i--) rest = rest << 8 | bytes[i] & 255;
        hash = (hash ^ rest) * MIX;
      }
      hash = (hash ^ hash >>> 13) * MIX;
      return hash ^ hash >>> 15;
    }
  }

  /** canonical(image, columns, table of rules by type): STRUCT of values, in canonical text, and problem. */
  public static final class Canonical extends OfImages<InternalRow> {
    Canonical(StructType types) {
      super(CANONICAL, types);
    }

    public InternalRow invoke(InternalRow a) {
      return state().canonical(row(a, 0, 2), array(a, 1), a.getUTF8String(2));
    }
  }

  /** spelled(values, columns, table of rules by type): an image to write. */
  public static final class Spelled extends OfImages<InternalRow> {
    Spelled(StructType types) {
      super(Shape.IMAGE, types);
    }

    public InternalRow invoke(InternalRow a) {
      return state().spelled(map(a, 0), array(a, 1), a.getUTF8String(2));
    }
  }

  /** overlay(base, over): the values of both by name, those of `over` first; NULL counts as empty. */
  public static final class OverlayValues extends OfImages<MapData> {
    OverlayValues(StructType types) {
      super(TEXTS, types);
    }

    public MapData invoke(InternalRow a) {
      MapData base = map(a, 0), over = map(a, 1);
      if (base == null || over == null) return base == null ? over : base;
      return (MapData) state().overlay(base, null, over, null);
    }
  }

  /** The same of images as they were read. */
  public static final class OverlayImage extends OfImages<InternalRow> {
    OverlayImage(StructType types) {
      super(Shape.IMAGE, types);
    }

    public InternalRow invoke(InternalRow a) {
      InternalRow base = row(a, 0, 2), over = row(a, 1, 2);
      if (base == null || over == null) return base == null ? over : base;
      return (InternalRow) state().overlay(base.getMap(0), base.getUTF8String(1), over.getMap(0), over.getUTF8String(1));
    }
  }

  /** pick(first, second, names): the named values, of `first` where it has them; NULL if one is in neither. */
  public static final class Pick extends OfImages<MapData> {
    Pick(StructType types) {
      super(TEXTS, types);
    }

    public MapData invoke(InternalRow a) {
      return state().pick(map(a, 0), map(a, 1), array(a, 2));
    }
  }

  /** differ(base, other): the values of `other` that `base` has not, or has otherwise. */
  public static final class Differ extends OfImages<MapData> {
    Differ(StructType types) {
      super(TEXTS, types);
    }

    public MapData invoke(InternalRow a) {
      return state().differ(map(a, 0), map(a, 1));
    }
  }

  /** covers(image, other): has the image every name that the other has? A NULL image has none, a NULL other needs none. */
  public static final class Covers extends OfImages<Boolean> {
    Covers(StructType types) {
      super(DataTypes.BooleanType, types);
    }

    @Override
    public boolean isResultNullable() {
      return false;
    }

    public boolean invoke(InternalRow a) {
      return state().covers(map(a, 0), map(a, 1));
    }
  }

  /** zip(names, values): a MAP; NULL if they are not as many, or a name comes twice. */
  public static final class Zip extends OfImages<MapData> {
    Zip(StructType types) {
      super(TEXTS, types);
    }

    public MapData invoke(InternalRow a) {
      return state().zip(array(a, 0), array(a, 1));
    }
  }

  /** fields(line, columns, skip): an image of as many texts between tabs as there are columns, after some of them. */
  public static final class FieldsOf extends Bound<InternalRow, Fields> {
    FieldsOf(StructType types) {
      super(Shape.IMAGE, types);
    }

    @Override
    Fields fresh() {
      return new Fields();
    }

    public InternalRow invoke(InternalRow a) {
      return state().image(a.isNullAt(0) ? null : a.getUTF8String(0), array(a, 1), a.getInt(2));
    }
  }

  /** note(values, names, texts): the values with each text that is not NULL under its name. */
  public static final class Note extends OfImages<MapData> {
    Note(StructType types) {
      super(TEXTS, types);
    }

    public MapData invoke(InternalRow a) {
      return state().note(map(a, 0), array(a, 1), array(a, 2));
    }
  }

  /** leading(numbers ARRAY): those before the first NULL; NULL if there is none. */
  public static final class Leading extends Bound<ArrayData, Void> {
    private final int precision;

    Leading(StructType types) {
      super(types.fields()[0].dataType(), types);
      precision = ((DecimalType) ((ArrayType) types.fields()[0].dataType()).elementType()).precision();
    }

    public ArrayData invoke(InternalRow a) {
      ArrayData numbers = array(a, 0);
      if (numbers == null) return null;
      int n = 0;
      while (n < numbers.numElements() && !numbers.isNullAt(n)) n++;
      if (n == 0 || n == numbers.numElements()) return n == 0 ? null : numbers;
      Object[] kept = new Object[n];
      for (int i = 0; i < n; i++) kept[i] = numbers.getDecimal(i, precision, 0);
      return new org.apache.spark.sql.catalyst.util.GenericArrayData(kept);
    }
  }

  /** merge(columns, columns): the columns of both by name, each fact from the first that knows it. */
  public static final class Merge extends OfImages<ArrayData> {
    Merge(StructType types) {
      super(COLUMNS, types);
    }

    public ArrayData invoke(InternalRow a) {
      return state().merge(array(a, 0), array(a, 1), COLUMNS);
    }
  }

  /** typed(columns, table of types, table of JDBC codes, keys): the columns as another system would declare them. */
  public static final class Typed extends OfImages<ArrayData> {
    Typed(StructType types) {
      super(COLUMNS, types);
    }

    public ArrayData invoke(InternalRow a) {
      return state().typed(array(a, 0), a.getUTF8String(1), a.getUTF8String(2), array(a, 3), COLUMNS);
    }
  }

  /** only(columns, names): the named columns. */
  public static final class Only extends OfImages<ArrayData> {
    Only(StructType types) {
      super(COLUMNS, types);
    }

    public ArrayData invoke(InternalRow a) {
      return state().only(array(a, 0), array(a, 1), COLUMNS);
    }
  }

  /** facts(columns, names of facts): the columns with those facts alone; a name with ! is one that a column must have. */
  public static final class Facts extends OfImages<ArrayData> {
    Facts(StructType types) {
      super(COLUMNS, types);
    }

    public ArrayData invoke(InternalRow a) {
      return state().facts(array(a, 0), array(a, 1), COLUMNS);
    }
  }

  /** listed(columns): STRING, the columns as a JSON array of objects; what is not known of a column is left out. */
  public static final class Listed extends Bound<UTF8String, Writer> {
    private static final String FACTS = "name?=name,type?=type,jdbc?=jdbc,nullable?=nullable,json?=json";

    Listed(StructType types) {
      super(TEXT, types);
    }

    @Override
    Writer fresh() {
      return new Writer(COLUMNS, FACTS);
    }

    public UTF8String invoke(InternalRow a) {
      return a.isNullAt(0) ? null : UTF8String.fromBytes(state().write(a.getArray(0)));
    }
  }

  /** prefixed(values, prefixes): the values whose names begin with one of them; NULL if none does. */
  public static final class Prefixed extends OfImages<MapData> {
    Prefixed(StructType types) {
      super(TEXTS, types);
    }

    public MapData invoke(InternalRow a) {
      return state().prefixed(map(a, 0), array(a, 1));
    }
  }

  /**
   * joined(texts, marks): the texts in quotes, joined. The marks are the quote, the separator, what is escaped in a
   * text, what stands for it, and what stands for NULL.
   */
  public static final class Joined extends Bound<UTF8String, Void> {
    Joined(StructType types) {
      super(TEXT, types);
    }

    public UTF8String invoke(InternalRow a) {
      ArrayData texts = array(a, 0), marks = array(a, 1);
      if (texts == null) return null;
      UTF8String quote = marks.getUTF8String(0), escaped = marks.getUTF8String(2), escape = marks.getUTF8String(3);
      UTF8String[] parts = new UTF8String[texts.numElements()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = texts.isNullAt(i) ? marks.getUTF8String(4)
            : UTF8String.concat(quote, texts.getUTF8String(i).replace(escaped, escape), quote);
      }
      return UTF8String.concatWs(marks.getUTF8String(1), parts);
    }
  }

  /** unlike(struct, struct): the names of the fields in which they differ. */
  public static final class Unlike extends Bound<ArrayData, Likeness> {
    private final StructType type;

    Unlike(StructType types) {
      super(DataTypes.createArrayType(TEXT, true), types);
      type = (StructType) types.fields()[0].dataType();
      String one = type.catalogString(), other = types.fields()[1].dataType().catalogString();
      if (!one.equals(other)) throw new UnsupportedOperationException("two types, " + one + " and " + other);
    }

    @Override
    Likeness fresh() {
      return new Likeness(type);
    }

    public ArrayData invoke(InternalRow a) {
      return state().unlike(row(a, 0, type.length()), row(a, 1, type.length()));
    }
  }

  /** completed(columns, image, image): the columns; of those without a type, what the images tell: names, JSON kinds. */
  public static final class Completed extends OfImages<ArrayData> {
    Completed(StructType types) {
      super(COLUMNS, types);
    }

    public ArrayData invoke(InternalRow a) {
      return state().completed(array(a, 0), row(a, 1, 2), row(a, 2, 2), COLUMNS);
    }
  }

  /** fold(steps): STRUCT, what the steps of one row come to; see Steps. */
  public static final class Fold extends Bound<InternalRow, Void> {
    Fold(StructType types) {
      super(Steps.STATE, types);
    }

    public InternalRow invoke(InternalRow a) {
      return Steps.fold(a.getArray(0));
    }
  }

  /** versions(steps, stored versions, tracked names or NULL): ARRAY of STRUCT, those that change; see Steps. */
  public static final class Versions extends Bound<ArrayData, Void> {
    Versions(StructType types) {
      super(DataTypes.createArrayType(Steps.VERSION, true), types);
    }

    public ArrayData invoke(InternalRow a) {
      return Steps.versions(a.getArray(0), a.getArray(1), array(a, 2));
    }
  }
}
