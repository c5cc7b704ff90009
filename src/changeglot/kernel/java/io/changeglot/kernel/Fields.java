package io.changeglot.kernel;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Texts between tabs as an image, by the names of columns. A backslash escapes: `\t`, `\n`, `\r`, `\b`, `\f`, `\v`, else
 * what follows it; `\N` alone is NULL, and `\-` alone leaves the column out.
 */
final class Fields {
  private final Image out = new Image();
  private Images.Mark known;
  private byte[][] columns;
  private byte[] names;
  private UTF8String kinds;

  /** STRUCT of values and kinds, of as many fields as there are columns, after `skip` of them; NULL if they are fewer. */
  InternalRow image(UTF8String line, ArrayData columns, int skip) {
    if (line == null || columns == null) return null;
    learn(columns);
    Object base = line.getBaseObject();
    boolean direct = base instanceof byte[];
    byte[] text = direct ? (byte[]) base : line.getBytes();
    int at = direct ? (int) (line.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET) : 0, end = at + line.numBytes();
    for (int i = 0; i < skip; i++) {
      while (at < end && text[at] != '\t') at++;
      if (at++ == end) return null;
    }
    int n = this.columns.length;
    boolean[] absent = null;
    out.begin();
    for (int i = 0; i < n; i++) {
      if (at > end) return null;
      int from = at, escapes = 0;
      for (; at < end && text[at] != '\t'; at++) {
        if (text[at] == '\\') {
          escapes++;
          at++;
        }
      }
      int length = Math.min(at, end) - from;
      at++;
      if (escapes == 0) {
        out.add(text, from, length);
      } else if (length == 2 && text[from + 1] == 'N') {
        out.add(null, 0, 0);
      } else if (length == 2 && text[from + 1] == '-') {
        if (absent == null) absent = new boolean[n];
        absent[i] = true;
      } else {
        byte[] plain = plain(text, from, length);
        out.add(plain, 0, plain.length);
      }
    }
    if (absent == null) {
      out.useNames(names);
      return new GenericInternalRow(new Object[] {out.map(), kinds});
    }
    Image some = new Image();
    for (int i = 0; i < n; i++) if (!absent[i]) some.add(this.columns[i], 0, this.columns[i].length);
    out.useNames(some.block());
    return new GenericInternalRow(new Object[] {out.map(), kinds});
  }

  private void learn(ArrayData columns) {
    if (known != null && known.is(columns)) return;
    int n = columns.numElements();
    this.columns = new byte[n][];
    Image all = new Image();
    for (int i = 0; i < n; i++) {
      this.columns[i] = columns.getStruct(i, Images.COLUMN_FIELDS).getUTF8String(0).getBytes();
      all.add(this.columns[i], 0, this.columns[i].length);
    }
    names = all.block();
    byte[] letters = new byte[n];
    Arrays.fill(letters, (byte) 's');
    kinds = UTF8String.fromBytes(letters);
    known = new Images.Mark(columns);
  }

  private static byte[] plain(byte[] text, int from, int length) {
    byte[] made = new byte[length];
    int n = 0;
    for (int i = from; i < from + length; i++) {
      byte c = text[i];
      if (c == '\\' && i + 1 < from + length) {
        c = text[++i];
        switch (c) {
          case 't': c = '\t'; break;
          case 'n': c = '\n'; break;
          case 'r': c = '\r'; break;
          case 'b': c = '\b'; break;
          case 'f': c = '\f'; break;
          case 'v': c = 11; break;
          default: break;
        }
      }
      made[n++] = c;
    }
    return Arrays.copyOf(made, n);
  }
}
