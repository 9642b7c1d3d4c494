/** As am instrument does. */
public final class Start {
    public static void main(String[] arguments) {
        new dev.ortmobile.runner.PackageRunner().onCreate(null);
    }
}
