package android.content.pm;

public final class ApplicationInfo {
    public String nativeLibraryDir = System.getProperty("libraries");
}
