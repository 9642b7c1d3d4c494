package android.provider;

import android.content.ContentResolver;

public final class Settings {
    public static final class Global {
        public static int getInt(ContentResolver resolver, String name, int otherwise) {
            return Integer.getInteger(name, otherwise);
        }
    }
}
