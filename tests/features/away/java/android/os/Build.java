package android.os;

public final class Build {
    public static final class VERSION {
        public static final int SDK_INT = 35;
    }
}
